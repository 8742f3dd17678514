"""Folders of pictures: every one is restored, what is done is skipped, what fails is named at the end."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tvae.config.schema import Config
from tvae.data.picture import add_noise
from tvae.errors import UserError
from tvae.io.image_file import read_image, write_image
from tvae.runs.folder import is_folder, pictures_of
from tvae.runs.folder_report import Row, write_report

OPTIONS = ["dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=1", "effort=fast"]


MANY = ["many_a.png", "many_b.png"]


def clean_picture(height, width):
    rows, columns = np.mgrid[:height, :width]
    return 120 + 60 * np.sin(columns / 4) + 30 * np.cos(rows / 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two pictures of different sizes, and other files."""
    monkeypatch.chdir(tmp_path)
    for name, shape in {"a": (20, 24), "b": (24, 18)}.items():
        noisy = np.rint(add_noise(clean_picture(*shape), 15, seed=0)).clip(0, 255).astype(np.uint8)
        Path("many").mkdir(exist_ok=True)
        Path("clean").mkdir(exist_ok=True)
        write_image(Path(f"many/{name}.png"), noisy)
        write_image(Path(f"clean/{name}.png"), np.rint(clean_picture(*shape)).astype(np.uint8))
    Path("many/notes.txt").write_text("no picture")
    return Path("many")


def table(path):
    return {row["name"]: row for row in csv.DictReader(path.open())}


@pytest.mark.usefixtures("_no_figures")
def test_every_picture_of_a_folder(folder, command):
    """A damaged one does not stop the others; when it is mended, only it is restored."""
    (folder / "aa.png").write_bytes(b"\x89PNG\r\n damaged")
    words = ["image=many/", "clean=clean", *OPTIONS, "hydra.run.dir=run"]
    write_image(Path("clean/aa.png"), np.rint(clean_picture(20, 24)).astype(np.uint8))
    code, out = command("denoise", *words)
    assert code == 1
    assert "2 of 3 pictures are done" in out
    assert "/run/results.html; these failed:" in out
    assert out.rstrip().splitlines()[-1].strip().startswith("aa.png: ")
    rows = table(Path("run/results.csv"))
    assert {name: row["status"] for name, row in rows.items()} == {
        "a.png": "finished", "aa.png": "failed", "b.png": "finished",
    }  # fmt: skip
    assert float(rows["a.png"]["psnr"]) > float(rows["a.png"]["psnr_input"]) + 3
    assert read_image("run/restored/b.png").pixels.shape == (24, 18, 1)
    page = Path("run/results.html").read_text()
    assert page.count("<img") == 4
    assert "1 failed" in page
    (folder / "aa.png").write_bytes((folder / "a.png").read_bytes())
    before = Path("run/runs/a.png/metrics.json").stat().st_mtime_ns
    out = command.ok("denoise", *words)
    assert any(line.endswith("/run/restored") for line in out.splitlines()), "where the results are"
    assert Path("run/runs/a.png/metrics.json").stat().st_mtime_ns == before
    assert table(Path("run/results.csv"))["aa.png"]["status"] == "finished"


@pytest.mark.usefixtures("_no_figures")
def test_one_model_for_all(folder, command):
    words = ["image=many/*.png", "shared=true", *OPTIONS, "hydra.run.dir=run", "output=results"]
    command.ok("denoise", *words)
    for name, shape in {"a": (20, 24), "b": (24, 18)}.items():
        found = read_image(f"results/{name}.png").pixels[..., 0]
        given = read_image(folder / f"{name}.png").pixels[..., 0]
        error, before = (np.sqrt(np.mean((each - clean_picture(*shape)) ** 2)) for each in (found, given))
        assert error < 0.65 * before
    model = Path("run/model.tvae").read_bytes()
    Path("results/a.png").unlink()
    Path("run/runs/b.png/metrics.json").unlink()
    command.ok("denoise", *words)
    assert Path("run/model.tvae").read_bytes() == model
    assert Path("results/a.png").is_file()
    assert json.loads(Path("run/runs/b.png/metrics.json").read_text())["status"] == "finished"


@pytest.mark.usefixtures("_no_figures")
def test_one_model_belongs_to_its_options_and_pictures(folder, command):
    words = ["image=many", "shared=true", *OPTIONS, "hydra.run.dir=run"]
    command.ok("denoise", *words)
    made = {path: path.read_bytes() for path in Path("run").rglob("*.*") if path.is_file()}
    out = command.refused("denoise", *words, "noise_model=gaussian")
    assert "belongs to another configuration (noise_model=auto there, gaussian here)" in out
    out = command.refused("denoise", *words[:1], *words[2:])
    assert "/run: belongs to another configuration (shared=True there, False here)" in out
    write_image(folder / "a.png", 255 - np.rint(read_image(folder / "a.png").pixels[..., 0]).astype(np.uint8))
    out = command.refused("denoise", *words)
    assert "/run: the picture has changed since that run (image=many)" in out
    assert {path: path.read_bytes() for path in made} == made
    command.ok("denoise", *words, "restart=true", "overwrite=true")
    Path("other").mkdir()
    Path("other/model.tvae").write_text("mine")
    code, out = command("denoise", *words[:-1], "hydra.run.dir=other")
    assert (code, Path("other/model.tvae").read_text()) == (2, "mine")
    assert "holds a foreign model.tvae" in out


def test_what_is_a_folder(folder):
    assert is_folder("many/")
    assert is_folder("many/*.png")
    assert not is_folder("many/a.png")
    assert not is_folder(None)
    Path("many/x[1].png").write_bytes(Path("many/a.png").read_bytes())
    assert not is_folder("many/x[1].png"), "the name of a file"
    assert [file.name for file in pictures_of(Config(image="many"))] == ["a.png", "b.png", "x[1].png"]
    with pytest.raises(UserError, match="no picture there"):
        pictures_of(Config(image="many/*.tif"))
    Path("many/checkpoint.pt").touch()
    with pytest.raises(UserError, match="image=many: is the directory of a run; run=many restores from it"):
        pictures_of(Config(image="many"))


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize("output", [[], ["output=results"]])
def test_results_of_runs_are_no_pictures_to_restore(folder, command, output):
    for _ in range(2):
        out = command.ok("denoise", "image=**/*[ab].png", *output, *OPTIONS, "hydra.run.dir=run")
        assert sorted(path.name for path in Path("run/runs").iterdir()) == ["clean_a.png", "clean_b.png", *MANY]
    assert "pictures were written by runs, and are left out" in out
    found = pictures_of(Config(image="run/restored/*.png" if not output else "results"))
    assert [file.name for file in found] == ["clean_a.png", "clean_b.png", *MANY], "what is named is read"


def test_foreign_tables_are_not_touched(folder, command):
    Path("run").mkdir()
    Path("run/results.csv").write_text("mine")
    code, out = command("denoise", "image=many/", *OPTIONS, "hydra.run.dir=run")
    assert (code, Path("run/results.csv").read_text()) == (2, "mine")
    assert "holds a foreign results.csv" in out
    Path("empty").mkdir()
    for words in (["image=empty"], ["image=many/*.jpg"], ["image=many", "output=run/results.csv"]):
        command.refused("denoise", *words, *OPTIONS, "hydra.run.dir=other")
        assert not Path("other").exists()
    command.refused("denoise", "image=many/a.png", "shared=true", *OPTIONS)


def test_the_page_has_columns_for_what_is_known(tmp_path):
    metrics = {"status": "finished", "seconds": 1.0, "seconds_total": 62.0, "noise_level": 20.0}
    row = Row.of("a.png", tmp_path / "a", metrics)
    write_report(tmp_path, [row])
    page = (tmp_path / "results.html").read_text()
    assert "PSNR" not in page
    assert "<td>62.0</td>" in page, "restoration counts"
    write_report(
        tmp_path, [row, Row.of("b.png", tmp_path / "b", metrics | {"psnr": 30.0, "psnr_input": 20.0, "ssim": 0.9})]
    )
    page = (tmp_path / "results.html").read_text()
    assert "30.00 dB (from 20.00)" in page
    assert len({line.count("<td>") for line in page.splitlines() if line.startswith("<tr><td>")}) == 1


@pytest.mark.usefixtures("_no_figures")
def test_train_takes_a_folder_and_says_that_it_adds_noise(command, folder):
    out = command.ok("train", "image=many", *OPTIONS[:-1], "noise=20", "hydra.run.dir=run")
    assert "noise=20.0: is added to many; sigma= states a level instead" in out
    assert {name: row["status"] for name, row in table(Path("run/results.csv")).items()} == {
        "a.png": "finished",
        "b.png": "finished",
    }
