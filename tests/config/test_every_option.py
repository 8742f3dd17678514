"""The text of `--help`, and suggestions for misspelt names."""

import pytest

from tvae.config.every_option import did_you_mean, every_option, help_text


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
    code, out = command("denoise", "--help", "dataset=bars")
    assert code == 0
    assert "Usage: python -m tvae.denoise [IMAGE [OUTPUT]] [OPTION=VALUE ...]" in out
    code, out = command("search", "--help")
    assert code == 0
    assert "n_trials=20" in out
    code, out = command("denoise", "--help", "patch_size=8")
    assert code == 2
    assert "did you mean dataset.patch_size?" in out
