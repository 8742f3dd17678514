"""Surroundings of a command: signals, streams, environment, names, memory. A line each, and no traceback unasked."""

import errno
import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.processes import SMALL, metrics
from tests.tiny import TINY, tiny_picture
from tvae import starting
from tvae.config.messages import explain
from tvae.io.image_file import write_image
from tvae.runs.callbacks import record
from tvae.runs.distributed import connection
from tvae.runs.signals import stop_on_signal

FIRST = "import os, signal; import tvae; "


@pytest.fixture
def call(command, monkeypatch):
    monkeypatch.setattr(record, "write_figures", lambda *_: None)
    monkeypatch.setattr(connection, "_joined", None)
    return command.of("train")


def python(code, *words, **options):
    """A process that takes itself for `python -m tvae.train`, up to where the package is imported."""
    code = "import sys; sys.orig_argv[1:] = ['-m', 'tvae.train']; " + code
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK=x in the environment: must be a whole number"),
        ({"RANK": "-1"}, "RANK=-1 in the environment: must be a whole number"),
        ({"WORLD_SIZE": "2.5"}, "WORLD_SIZE=2.5 in the environment: must be a whole number"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK= in the environment: must be a whole number"),
        ({"SLURM_CPUS_PER_TASK": "x"}, "SLURM_CPUS_PER_TASK=x in the environment: must be a whole number"),
        ({"SLURM_CPUS_PER_TASK": "0"}, "SLURM_CPUS_PER_TASK=0 in the environment: must be at least 1"),
        ({"RANK": "1"}, "process 1: RANK=1 in the environment, but WORLD_SIZE is 1: there is no such process"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "process 2: RANK=2 in the environment, but WORLD_SIZE is 2"),
    ],
)
def test_an_environment_that_cannot_be(call, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out = call(*SMALL, "hydra.run.dir=run")
    assert (code, out.count("\n")) == (2, 1)
    assert out.startswith(f"error: {message}")
    assert not Path("run").exists()


@pytest.mark.parametrize("word", ["image=glob(*.png)", "dataset=glob(zzz*)", "seed=glob(*)"])
def test_a_sweep_over_nothing_is_a_mistake(call, word):
    Path("a.png").touch()
    code, out = call("-m", word)
    assert (code, out.count("\n")) == (2, 1)
    assert out.startswith(f"error: {word}: matches nothing")


def test_a_sweep_over_a_group(call):
    call.ok("-m", "lr=glob(con*)", *SMALL)
    assert len(list(Path("outputs/train").glob("*/metrics.json"))) == 1


@pytest.mark.parametrize("overrides", [["epochs=0"], ["epohcs=3"]])
def test_tracebacks_on_request(call, monkeypatch, overrides):
    assert "Traceback" not in call(*overrides)[1]
    monkeypatch.setattr(monkeypatch, "setenv", lambda *_: None)  # the command's own, of HYDRA_FULL_ERROR=0
    os.environ["HYDRA_FULL_ERROR"] = "1"
    out = call.refused(*overrides)
    assert out.startswith("Traceback")
    assert out.splitlines()[-1].startswith(f"error: {overrides[0]}: ")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "out of memory; less is needed with"),
        (RuntimeError("can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12"), "37.3 GB were"),
        (RuntimeError("Storage size calculation overflowed with sizes=[100000000000, 1]"), "out of memory; less"),
        (RuntimeError("std::bad_alloc"), "out of memory; less"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"), "2.00 GiB were requested"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory; less"),
        (OSError(errno.EIO, "Input/output error"), "the system says: Input/output error"),
    ],
)
def test_what_the_system_lacks_is_a_line_and_code_1(error, told):
    (line,), code = explain(error)
    assert code == 1
    assert told in line


def test_numpy_says_how_much_memory_it_wanted():
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 57, np.float64)
    (line,), _ = explain(caught.value)
    assert "out of memory: 1.00 EiB were requested at once" in line


def test_too_large_a_model(command):
    write_image(Path("a.png"), tiny_picture())
    code, out = command("denoise", "image=a.png", *TINY, "model.n_latents=100000000", "hydra.run.dir=run")
    assert code == 1
    assert "Traceback" not in out
    told = r"out of memory: [\d,.]+ GB were requested at once; less is needed with .*"
    assert re.fullmatch(told, out.splitlines()[-1]), out


@pytest.mark.parametrize(("words", "is_so"), [
    (["python", "-m", "tvae.denoise", "-m", "seed=0,1"], True), (["python", "-u", "-m", "tvae.search"], True),
    (["/usr/bin/python3", "/bin/tvae-inpaint", "image=a.png"], True), (["python", "-m", "pytest", "tvae.train"], False),
    (["python"], False), (["python", "-m", "notebook"], False), (["python", "train.py", "-m", "tvae.train"], False),
])  # fmt: skip
def test_only_commands_are_started(monkeypatch, words, is_so):
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(sys, "argv", [words[1] if len(words) > 1 and words[1][0] != "-" else "-m"])
    assert starting.is_command() == (is_so or words[1:2] == ["train.py"])


def test_an_interruption_before_anything_is_imported_is_a_line_and_code_1():
    done = python(FIRST + "os.kill(os.getpid(), signal.SIGINT); print('still here')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{starting.INTERRUPTED}\n"


def test_what_cannot_be_imported_is_a_line_unless_more_is_asked_for():
    """The import fails as that of torch does in too little memory."""
    code = FIRST + "raise ImportError('libtorch_cpu.so: failed to map segment')"
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(
        "cannot be started (ImportError: libtorch_cpu.so: failed to map segment); is there too"
    )
    done = python(code, env={**os.environ, "HYDRA_FULL_ERROR": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "2>&- >&-", "<&- 2>&- >&-"])
def test_closed_streams_lead_to_nowhere(tmp_path, closed):
    """Else the next file that is opened would be standard error."""
    code = "import sys; sys.orig_argv[1:] = ['-m', 'tvae.train']; import tvae; f = open('mine', 'w'); "
    code += "print('lost', file=sys.stderr); print('lost'); import os; os.write(2, b'lost'); f.close()"
    done = subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], cwd=tmp_path, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_working_directory_that_is_gone(tmp_path):
    root = Path(starting.__file__).parent.parent
    code = (
        f"import os, sys; sys.path.insert(0, {str(root)!r}); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); import tvae"
    )
    done = python(code, str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "error: the working directory does not exist any more\n")


def test_garbage_is_looked_for_as_usual_once_all_is_imported():
    code = "import gc; usual = gc.get_threshold(); import tvae; rare = gc.get_threshold(); from tvae import starting; "
    code += "starting.ready(); assert rare[0] > 1000 * usual[0]; assert gc.get_threshold() == usual; "
    code += "assert gc.get_freeze_count() > 0 and gc.isenabled()"
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
    before = gc.get_threshold(), gc.get_freeze_count()
    starting.ready()  # which has not been started here
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_a_python_program_that_imports_the_package_keeps_its_handlers():
    before = signal.getsignal(signal.SIGINT)
    import tvae  # noqa: F401

    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("place", ["finish", "__init__"])
def test_an_interruption_elsewhere_than_in_training(call, monkeypatch, place):
    """While restoring, and while the kernel is compiled: a line each."""
    from tvae.runs.session import Session

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, place, interrupted)
    code, out = call(*SMALL, "epochs=1", "hydra.run.dir=run")
    assert code == 1
    assert out.splitlines()[-1] == starting.INTERRUPTED
    assert "Traceback" not in out


def test_a_hangup_saves_as_any_other_signal_unless_it_is_ignored():
    with stop_on_signal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop(), "as under nohup"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_picture_whose_name_is_not_text(command, monkeypatch):
    """The run directory is named by it."""
    monkeypatch.setattr(record, "write_figures", lambda *_: None)
    name = os.fsdecode(b"b\xffd.png")
    write_image(Path(name), tiny_picture())
    command.ok("denoise", name, os.fsdecode(b"o\xfft.png"), *TINY)
    (run,) = Path("outputs/denoise").iterdir()
    assert Path(os.fsdecode(b"o\xfft.png")).read_bytes() == (run / "restored.png").read_bytes()
    assert "finished already" in command("denoise", name, os.fsdecode(b"o\xfft.png"), *TINY)[1]


def test_a_directory_whose_name_is_not_text(call, tmp_path, monkeypatch):
    place = tmp_path / os.fsdecode(b"n\xffm")
    place.mkdir()
    monkeypatch.chdir(place)
    out = call.ok(*SMALL, "epochs=1", "hydra.run.dir=run")
    assert "a name that is not UTF-8, so nothing is written for TensorBoard" in out
    assert metrics("run")["status"] == "finished"
    assert "finished already" in call(*SMALL, "epochs=1", "hydra.run.dir=run")[1]
