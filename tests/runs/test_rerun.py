"""`run=DIR`: a run that is there is restored otherwise, from anywhere, and trained further."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import TINY, tiny_picture

from tests.processes import metrics
from tvae.io.image_file import read_image, write_image

pytestmark = pytest.mark.usefixtures("_no_figures")


@pytest.fixture
def call(command):
    write_image(Path("in.png"), tiny_picture())
    run = command.of("denoise")
    run.ok("image=in.png", "model=deep", *TINY, "restoration=posterior_mean", "hydra.run.dir=run")
    return run


def test_options_of_restoration_and_any_working_directory(call, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_image(Path("in.png"), tiny_picture()[::-1])  # another picture of the same name
    call.ok("run=../run", "hydra.run.dir=same")
    assert read_image("same/restored.png").pixels.tolist() == read_image("../run/restored.png").pixels.tolist()
    for options in (["dataset.stride=2"], ["dataset.average=gaussian"], ["restoration.n_rounds=9"]):
        call.ok("run=../run", *options)
        (path,) = Path("outputs/denoise").glob(f"*{options[0]}*")
        assert not np.array_equal(read_image(path / "restored.png").pixels, read_image("same/restored.png").pixels)
    out = call.refused("run=../run", "seed=3")
    assert out.startswith("error: seed: a run keeps its options; run= can be combined only with ")


@pytest.mark.parametrize(
    "words", [["run=run"], ["image=in.png", "model=deep", *TINY, "restoration=posterior_mean", "hydra.run.dir=run"]]
)
def test_a_finished_run_is_trained_further(call, words):
    words = [word for word in words if not word.startswith("epochs")]
    before = Path("run/history.csv").read_text()
    out = call.ok(*words, "epochs=3")
    assert "resumed after epoch 1" in out
    assert metrics("run")["epochs"] == 3
    assert Path("run/history.csv").read_text().startswith(before), "the first epoch is as it was"
    assert str(Path("run/restored.png")) in out
    assert sorted(path.name for path in Path().iterdir()) == ["in.png", "run"]
    code, out = call(*words, "epochs=3")
    assert (code, "finished already" in out or "has 3 already" in out) == (0 if "image" in words[0] else 2, True)
    code, out = call(*words, "epochs=2")
    assert code == 2, "it has more"


def test_trained_further_from_another_working_directory(call, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    call.ok("run=../run", "epochs=2", "output=out.png")
    assert metrics("../run")["epochs"] == 2
    assert [path.name for path in Path().iterdir()] == ["out.png"]


def test_tensorboard_shows_the_input_and_the_result_and_has_a_column_for_psnr(call):
    events = EventAccumulator("run/tensorboard", {"images": 0}).Reload()
    assert [event.step for event in events.Images("input")] == [0]
    assert [event.step for event in events.Images("restored, final")] == [1]
    content = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert b"final/psnr" in content, "though this run has none"
    assert "final/psnr" not in events.Tags()["scalars"]
    assert events.Scalars("final/elbo")[0].value == pytest.approx(metrics("run")["elbo"])
    call.ok("image=in.png", "corruption=gaussian", "noise=20", *TINY, "hydra.run.dir=known")
    events = EventAccumulator("known/tensorboard").Reload()
    assert events.Scalars("final/psnr")[0].value == pytest.approx(metrics("known")["psnr"])


def test_where_there_is_no_run_and_where_nothing_can_be_written(call):
    Path("empty").mkdir()
    before = Path("in.png").read_bytes()
    for words, told in {
        ("run=nowhere", "hydra.run.dir=other"): "run=nowhere: there is no such directory",
        ("run=in.png", "hydra.run.dir=other"): "run=in.png: there is no such directory",
        ("run=empty", "hydra.run.dir=other"): "run=empty: is not a run directory: it holds no config.yaml",
        ("run=run", "hydra.run.dir=in.png"): "in.png: exists already and is not a folder",
        ("run=run", "output=in.png", "overwrite=true", "hydra.run.dir=other"): "output=in.png: is what image= reads",
    }.items():
        code, out = call(*words)
        assert (code, out.count("\n")) == (2, 1)
        assert out.startswith(f"error: {told}")
    assert Path("in.png").read_bytes() == before
