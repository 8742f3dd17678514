"""The text of `--help`, and suggestions for misspelt names."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import TINY, tiny_picture
from tvae.config.every_option import did_you_mean, every_option, help_text
from tvae.io.image_file import read_image, write_image


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("patch_size", "dataset.patch_size"),
        ("n_latents", "model.n_latents"),
        ("latents", "model.n_latents"),
        ("epoch", "epochs"),
        ("+epohcs", "epochs"),
        ("dataset.patchsize", "dataset.patch_size"),
        ("model.patch_size", "dataset.patch_size"),
        ("stride", "dataset.stride"),
        ("memmap", "states.memmap"),
        ("file", "dataset.file"),
    ],
)
def test_dotted_names_are_looked_at(given, meant):
    assert did_you_mean(given) == f"; did you mean {meant}?"


def test_some_names_are_like_no_other():
    assert did_you_mean("xyzzy") == ""


def test_help_explains_every_option():
    text = help_text("tvae-denoise", "about it", ("image", "output"), ["dataset=bars", "epochs=7"])
    assert text.startswith("about it\n\nUsage: tvae-denoise [IMAGE [OUTPUT]] [OPTION=VALUE ...]\n")
    for line in (
        "  epochs=7                        visits of all data points; null: by the data (at least 1)",
        "  dataset.n_points=500            images (at least 1)",
        "  restart=false                   throw away what the run directory holds and start over",
    ):
        assert line in text.splitlines()
    assert "(relu|leaky_relu|" in text
    assert "dataset.patch_size" not in text, "bars have none"
    assert max(map(len, text.splitlines())) <= 120
    shown = {line.split("=")[0].strip() for line in text.splitlines() if line.startswith("  ") and line[2] != " "}
    assert {name for name in every_option() if not name.startswith("dataset.")} <= shown


def test_every_option_has_a_meaning():
    assert [name for name, each in every_option().items() if not each.metadata.get("meaning")] == []


def test_help_of_a_command(command):
    out = command.ok("denoise", "--help-all", "dataset=bars")
    assert "Usage: python -m tvae.denoise [IMAGE [OUTPUT]] [OPTION=VALUE ...]" in out
    out = command.ok("search", "--help")
    assert "n_trials=20" in out
    out = command.refused("denoise", "--help-all", "patch_size=8")
    assert "did you mean dataset.patch_size?" in out


@pytest.mark.parametrize(("task", "own"), [("denoise", "sigma=LEVEL"), ("inpaint", "mask=FILE")])
def test_help_of_those_who_restore_begins_with_what_they_need(command, task, own):
    out = command.ok(task, "--help")
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert shown == ["image=FILE", "output=FILE", own, "effort=default", "clean=FILE", "overwrite=true"]
    assert {word.partition("=")[0] for word in shown} <= {*every_option()}
    assert max(map(len, out.splitlines())) <= 80
    assert "--help-all" in out
    assert len(command(task, "--help-all")[1].splitlines()) > 60


@pytest.mark.parametrize(("columns", "longest"), [(20, 80), (80, 80), (100, 100), (300, 120)])
def test_help_fits_the_terminal(columns, longest):
    about = (
        "A first paragraph about the command, which is a little longer than a narrow terminal is wide.\n\n    as it is"
    )
    lines = help_text("tvae-train", about, (), [], columns).splitlines()
    assert longest - 10 < max(len(line) for line in lines) <= longest
    assert "    as it is" in lines


def test_help_of_a_search_names_its_command():
    done = subprocess.run([sys.executable, "-m", "tvae.search", "--help"], capture_output=True, text=True, timeout=120)
    assert "Usage: python -m tvae.search [OPTION=VALUE ...]" in done.stdout


def test_help_that_nobody_reads_to_its_end():
    words = f"{sys.executable} -m tvae.denoise --help-all | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("_no_figures")
def test_the_output_by_its_letter(command):
    write_image(Path("a.png"), tiny_picture())
    command.ok("denoise", "a.png", "-o", "b.png", *TINY, "hydra.run.dir=run")
    assert read_image("b.png").pixels.shape == (24, 24, 1)
    code, out = command("denoise", "a.png", "-o")
    assert (code, out) == (2, "error: -o: no file was given\n")
    code, out = command("denoise", "a.png", "-o", "b.png", "-o", "c.png")
    assert (code, out) == (2, "error: -o: is given more than once\n")
