"""Any name that a file can have reaches the configuration as it was typed."""

import os
import shlex
from pathlib import Path

import pytest
from composing import checked, composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tvae.config.paths_as_typed import PATHS, as_typed, how_to_quote, is_sweep
from tvae.errors import UserError

AWKWARD = [
    "photo (1).png", "müller/p.png", "a=b.png", "a,b.png", "[1].png", "#1.png", "it's.png", 'say "x".png', "$HOME.png",
    "${seed}.png", "\\${seed}", "{}.png", "true", "1e5", "???", " a ", "a\\", "a\\'", "a\nb", "outputs/image=x.png",
    "'quoted.png'", "-x", "+1", "a:b", "inf", "None",
]  # fmt: skip
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


def value_of(word):
    """The value that a word has in a configuration of Hydra, without composing one."""
    (override,) = OverridesParser.create().parse_overrides(as_typed([word]))
    cfg = OmegaConf.create()
    OmegaConf.update(cfg, "value", override.value())
    return cfg.value


def is_plain(name):
    return name.lower() != "null" and not name.startswith("~")


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_names(name):
    assert os.path.normpath(value_of(f"image={name}")) == os.path.normpath(name)


def test_names_in_a_composed_configuration():
    config = checked(*as_typed(["image=${seed} (1).png", "clean=true", "output=a,b=[c]#"]))
    assert (config.image, config.clean, config.output) == ("${seed} (1).png", "true", "a,b=[c]#")


@given(NAMES.filter(is_plain))
@example("\\\\${")
@settings(max_examples=200, deadline=None)
def test_every_name_round_trips(name):
    assert os.path.normpath(value_of(f"image={name}")) == os.path.normpath(name)


@given(NAMES.filter(lambda name: is_plain(name) and "${" not in name and name != "???"))
@settings(max_examples=100, deadline=None)
def test_every_run_directory_round_trips(name):
    assert value_of(f"hydra.run.dir={name}") == name


def test_every_path_is_taken_as_typed():
    words = as_typed([f"++{name}=a (1),b" for name in PATHS])
    cfg = composed("dataset=array", *words, return_hydra_config=True)
    assert [OmegaConf.select(cfg, name) for name in PATHS] == ["a (1),b"] * len(PATHS)


def test_what_a_path_is_not():
    assert as_typed(["noise=1e5", "model.hidden=[1]", "~seed"]) == ["noise=1e5", "model.hidden=[1]", "~seed"]
    assert value_of("image=null") is None
    with pytest.raises(UserError, match="image=: no path was given"):
        as_typed(["image="])


def test_names_that_need_no_quotes_keep_the_run_directory_that_they_had():
    words = ["image=photo.png", "clean=a b.png", "hydra.run.dir=runs/${seed}"]
    assert as_typed(words) == words


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert checked(*as_typed(["image=~/p (1).png"])).image == "/home/me/p (1).png"
    assert checked(*as_typed(["image=./~"])).image == "./~"
    assert checked("image='~/p.png'").image == "/home/me/p.png", "in sweeps and Python calls, too"
    assert as_typed(["hydra.run.dir=~/run"]) == ["hydra.run.dir=/home/me/run"]


@pytest.mark.parametrize("flag", ["-m", "--multirun", "--multi", "hydra.mode=MULTIRUN"])
def test_sweeps_keep_the_grammar(flag):
    assert is_sweep([flag])
    assert as_typed(["image=a,b", flag]) == ["image=a,b", flag]


@pytest.mark.parametrize("name", AWKWARD[:10])
def test_what_is_said_of_quotes_in_a_sweep_works(name):
    (word,) = shlex.split(how_to_quote(f"image={name}").partition("quotes: ")[2])
    (override,) = OverridesParser.create().parse_overrides([word])
    assert OmegaConf.create({"image": override.value()}).image == name
    assert how_to_quote("noise=(") == ""


def test_bare_words_stand_for_options():
    names = ("image", "output")
    assert as_typed(["in.png", "epochs=3", "out.png"], names) == ["image=in.png", "epochs=3", "output=out.png"]
    assert as_typed(["-cd", "folder", "a (1).png"], names) == ["-cd", "folder", "image='a (1).png'"]
    assert as_typed(["-m", "in.png"], names) == ["-m", "image=in.png"]
    assert as_typed(["~seed"], names) == ["~seed"]
    assert as_typed(["in.png"]) == ["in.png"], "which Hydra will refuse"
    with pytest.raises(UserError, match="c: one word too many; words without = stand for image and output"):
        as_typed(["a", "b", "c"], names)


def test_bare_words_with_an_equals_sign(tmp_path, monkeypatch):
    """A name that no option can have, or a picture that is there."""
    monkeypatch.chdir(tmp_path)
    shorthand = ("image", "output")
    assert as_typed(["in (1)=2.png"], shorthand) == ["image='in (1)=2.png'"]
    assert as_typed(["a.png", "müller=1.tif"], shorthand) == ["image=a.png", "output='müller=1.tif'"]
    assert as_typed(["imgae=b.png"], shorthand) == ["imgae=b.png"], "misspelt, which is told"
    for name in ("./out=1.png", "../out=1.png", "/tmp/out=1.png"):
        assert as_typed(["a.png", name], shorthand) == ["image=a.png", f"output='{name}'"], "which is yet to be written"
    Path("a=b.png").touch()
    Path("epochs=2").touch()
    Path("image=c.png").touch()
    words = ["a=b.png", "epochs=2", "image=c.png", "hydra/launcher=joblib"]
    assert as_typed(words, shorthand) == ["image='a=b.png'", *words[1:]]


def test_a_folder_named_like_a_run_is_restored_from(command):
    code, out = command("denoise", "run=outputs/denoise/image=x.png")
    assert (code, out) == (
        2,
        "error: run=outputs/denoise/image=x.png: there is no such directory\n",
    )


def test_a_picture_with_an_awkward_name_is_looked_for(command):
    for name in ("photo (1).png", "müller=(a, b)#.png", "1e5"):
        assert command("denoise", f"image={name}") == (2, f"error: {name}: No such file or directory\n")
    out = command.refused("denoise", "-m", "image=photo (1).png")
    assert "in a sweep names like this need quotes: 'image='\"'\"'photo (1).png'\"'\"''" in out
