"""The frame of every command: it starts Hydra, and ends with an exit code and a line for what went wrong.

0 done; 2 a mistake in what the user gave, a line for each; 1 anything else, also an interruption.
HYDRA_FULL_ERROR=1 in the environment shows tracebacks.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from tvae import __version__
from tvae.config.checks import resolve
from tvae.config.every_option import OF_TASK, WIDTH, help_text, short_help
from tvae.config.messages import check_globs, explain, flags_last, one_line
from tvae.config.paths_as_typed import as_typed, is_sweep
from tvae.config.placement import (
    check_environment,
    cores_of_task,
    local_rank,
    local_size,
    n_cores,
    rank_here,
)
from tvae.config.schema import Config, register
from tvae.errors import UserError, refuse
from tvae.io.atomic import NO_ROOM
from tvae.runs.distributed.connection import (
    is_first_attempt,
    is_known_to_all,
    join,
    leave,
    n_joined,
    sharing_failures,
    wait_until_told,
)
from tvae.runs.distributed.ranks import LostRank, Ranks
from tvae.runs.log_lines import log_to_terminal
from tvae.runs.result import tell_result
from tvae.runs.run_directory import Busy, remove_made
from tvae.runs.signals import LAUNCHED_BY, Interrupted, at_work, end_with_launcher, raise_interrupts
from tvae.runs.sweeps import JOBS, note_job, tell_sweep
from tvae.starting import INTERRUPTED, ready

register()

TRACEBACKS = "TVAE_TRACEBACKS"  # in the environment: 1 if the user has asked for them by HYDRA_FULL_ERROR=1
FAILURES = "TVAE_FAILURES"  # in the environment: the file to which jobs of a multirun add what went wrong


def run(task: Callable[[Config, Path], object], cfg: DictConfig) -> None:
    """The body of a Hydra job: `task` on the checked configuration and the run directory."""
    with at_work:
        _run(task, cfg)


def _run(task: Callable[[Config, Path], object], cfg: DictConfig) -> None:
    path = Path(HydraConfig.get().runtime.output_dir)
    is_multirun = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        if _is_joblib() and "TORCHELASTIC_RUN_ID" in os.environ:
            raise UserError("hydra/launcher=joblib: does not work under torchrun; use one of them")
        if _is_joblib():
            end_with_launcher()
        ranks = join()
        log_to_terminal(f"{path.name}: " if _is_joblib() else "")
        with sharing_failures():
            config = resolve(cfg)
            refuse(config.task != Config.task, f"task={config.task}: set by the command python -m tvae.{config.task}")
            config.threads = config.threads or threads_of_job()
            config.restart = config.restart and is_first_attempt()  # else it would throw away what that one has saved
            path = _shared(path, ranks)
            if is_multirun and ranks.is_leader:
                note_job(path)
            _run_when_free(task, config, path, is_patient=is_multirun and ranks.is_alone)
        if ranks.is_leader:
            tell_result(config, path)
    except Exception as error:
        if not isinstance(error, Busy):
            remove_made(path)  # by whichever rank has made it
        if is_multirun and is_known_to_all(error) and not isinstance(error, (Interrupted, LostRank)):
            _note_failure(f"{path}: {one_line(error)}")
            raise  # Hydra continues with the other jobs and raises this again at the end
        _end(error)


def _run_when_free(task: Callable[[Config, Path], object], config: Config, path: Path, is_patient: bool) -> None:
    """Run `task`; a patient one waits for another process in the directory: a sweep may have been started twice."""
    while True:
        try:
            task(config, path)
            return
        except Busy as busy:
            if not is_patient:
                raise
            busy.wait()


def _shared(path: Path, ranks: Ranks) -> Path:
    """The leader's run directory, for all ranks."""
    theirs = Path(ranks.gather(str(path))[0])
    if theirs != path:
        with suppress(OSError):
            path.rmdir()  # Hydra has made it, for a name that depends on the time
    return theirs


def _is_joblib() -> bool:
    """True if this job is one of several that joblib runs side by side."""
    return HydraConfig.get().mode == RunMode.MULTIRUN and "joblib" in HydraConfig.get().launcher._target_


def _note_failure(line: str) -> None:
    """Add a line to the list of failed jobs; on another machine the file of that list may be out of reach."""
    with (
        suppress(KeyError, OSError),
        open(os.environ[FAILURES], "a", encoding="utf-8", errors="backslashreplace") as file,
    ):
        file.write(f"{line}\n")


def threads_of_job() -> int | None:
    """A share of the cores for each of the ranks or jobs on this machine; None if there is only one at a time."""
    if cores_of_task() is not None:
        return cores_of_task()
    if local_size() > 1:
        return max(1, n_cores() // local_size())
    if not _is_joblib():
        return None
    n_jobs = HydraConfig.get().launcher.n_jobs or 1
    return max(1, n_cores() // (n_jobs if n_jobs > 0 else n_cores()))


def launch(job: Callable[[], None], about: str | None, shorthand: Sequence[str] = ()) -> None:
    """Start a `hydra.main` function from the command line.

    `about`: what `--help` says first; `shorthand`: options that bare words stand for.
    """
    ready()
    raise_interrupts()
    os.environ[TRACEBACKS] = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its exceptions on, instead of printing and exiting with 1
    threading.excepthook, sys.excepthook = _end_of_thread, sys.__excepthook__
    try:
        check_environment()
        log_to_terminal()
        if shorthand:
            sys.argv[1:] = _with_output(sys.argv[1:])
        sys.argv[1:] = as_typed(sys.argv[1:], shorthand)
        if {"-h", "--help", "--help-all"} & {*sys.argv[1:]}:
            _show_help(about or "", shorthand)
            return
        if "--version" in sys.argv[1:]:  # Hydra would tell its own
            print(f"tvae {__version__}")
            return
        sys.argv[1:] = flags_last(sys.argv[1:])
        check_globs(sys.argv[1:] if is_sweep(sys.argv[1:]) else [])
        with tempfile.TemporaryDirectory(prefix="tvae-") as folder:
            _launch(job, Path(folder))
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(INTERRUPTED, file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        _end(error)


def _with_output(words: list[str]) -> list[str]:
    """The words with `-o FILE` as `output=FILE`."""
    if "-o" not in words:
        return words
    place = words.index("-o")
    refuse(place + 1 == len(words), "-o: no file was given")
    refuse("-o" in words[place + 1 :], "-o: is given more than once")
    return [*words[:place], f"output={words[place + 1]}", *words[place + 2 :]]


def _show_help(about: str, shorthand: Sequence[str]) -> None:
    """Print a few lines, or with `--help-all`, and of commands without shorthand, every option."""
    task = Path(sys.argv[0]).stem.rpartition("-")[2]
    if task in OF_TASK and "--help-all" not in sys.argv[1:]:
        text = short_help(_name(), about, task)
    else:
        given = [word for word in sys.argv[1:] if "=" in word]
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        text = help_text(_name(), about, shorthand, given, columns)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _launch(job: Callable[[], None], folder: Path) -> None:
    """`folder`: of the files to which jobs of a sweep add where they are, and what went wrong."""
    jobs, failures = folder / "jobs", folder / "failures"
    os.environ[JOBS], os.environ[FAILURES], os.environ[LAUNCHED_BY] = str(jobs), str(failures), str(os.getpid())
    try:
        job()
        leave()
    finally:
        if rank_here() == 0:
            tell_sweep(jobs)
        if failures.exists() and rank_here() == 0:
            lines = failures.read_text("utf-8", "backslashreplace").splitlines()
            print("jobs that failed:", *lines, sep="\n  ", file=sys.stderr)


def _name() -> str:
    """The command as the user would type it."""
    called = Path(sys.argv[0])
    module = called.parent.name if called.stem == "__main__" else called.stem
    return f"python -m tvae.{module}" if called.suffix == ".py" else called.name


def _end_of_thread(end: threading.ExceptHookArgs) -> None:
    """Ignore a full disk in TensorBoard's thread: the main thread raises the same error and reports it."""
    if not (isinstance(end.exc_value, OSError) and end.exc_value.errno in NO_ROOM):
        threading.__excepthook__(end)


def callable_as(module: str, function: str) -> None:
    """Let a command's module be called like the function of `tvae.api` whose name it has: `tvae.denoise(image)`."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            from tvae import api

            return getattr(api, function)(*args, **options)

    sys.modules[module].__class__ = CallableModule


def _end(error: Exception) -> None:
    """Say what is wrong and end the process, or let an unforeseen error through."""
    explained = explain(error)
    if explained is None:
        raise error
    lines, code = explained
    # The leader reports what all ranks know; before they are connected, the first one on each machine does.
    rank, is_others = 0, False
    with suppress(UserError):  # it may be the environment that is wrong
        rank, is_others = rank_here(), getattr(error, "is_shared", False) if n_joined() else local_rank() > 0
    who = f"process {rank}: " if rank else ""
    if os.environ.get(TRACEBACKS) == "1":
        traceback.print_exception(error)
    for line in lines if not (rank and is_others) else ():
        print(f"error: {who}{line}" if code == 2 else f"{who}{line}", file=sys.stderr)
    if getattr(error, "is_shared", False):
        wait_until_told()
    sys.exit(code)
