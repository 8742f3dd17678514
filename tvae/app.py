"""What every command shares: starting Hydra, and turning what goes wrong into one line and an exit code.

0 done; 2 a mistake in what the user gave, a line for each; 1 anything else, also an interruption.
HYDRA_FULL_ERROR=1 in the environment shows tracebacks.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import string
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tvae import config as configuration
from tvae.atomic import NO_ROOM, DiskFull
from tvae.check import did_you_mean, resolve
from tvae.checkpoint import DamagedCheckpoint
from tvae.config import Config, UserError
from tvae.device import n_cores
from tvae.fit import TrainingFailed
from tvae.ranks import LostRank, Ranks, is_first_attempt, is_joined, join, leave, local_rank, local_size, rank_here
from tvae.stopping import LAUNCHED_BY, at_work, end_with_launcher

log = logging.getLogger("tvae")

NAME_MAX = 150  # characters of a run's directory name, before the rest is replaced by a hash


class Interrupted(Exception):
    """The user or the machine asked the run to stop; the same command goes on."""


class GivenUp(Interrupted):
    """Whoever called for the run saw no point in going on with it."""


def run_name(overrides: str) -> str:
    """A run's directory name from its overrides: one path component, whatever the values hold."""
    plain = string.ascii_letters + string.digits + "=,.+-_"
    name = "".join(c if c in plain else "_" for c in overrides).strip(".") or "default"
    if name == overrides and len(name) <= NAME_MAX:
        return name
    return name if overrides == "" else f"{name[:NAME_MAX]}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"


configuration.register()
OmegaConf.register_new_resolver("run_name", run_name, replace=True)


KILLED = (
    "a job was killed, perhaps for want of memory, and the others were stopped; the same command goes on "
    "with what is missing, and needs less memory with fewer jobs at a time (hydra.launcher.n_jobs)"
)
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
            raise UserError("hydra/launcher=joblib: not under torchrun; jobs side by side, or processes of one job")
        if _is_joblib():
            end_with_launcher()
        ranks = join()
        _log_to_terminal(f"{path.name}: " if _is_joblib() else "")
        config = ranks.together(lambda: resolve(cfg))
        config.threads = config.threads or threads_of_job()
        config.restart = config.restart and is_first_attempt()  # else it would throw away what that one has saved
        task(config, _shared(path, ranks))
    except Exception as error:
        goes_on = is_multirun and not isinstance(error, Interrupted)
        if goes_on and (not is_joined() or join().is_alone or getattr(error, "is_shared", False)):
            _note_failure(f"{path}: {one_line(error)}")
            raise  # Hydra goes on with the other jobs and raises this again at the end
        _give_up(error)


def _shared(path: Path, ranks: Ranks) -> Path:
    """The leader's run directory, for all ranks."""
    theirs = Path(ranks.gather(str(path))[0])
    if theirs != path:
        with suppress(OSError):
            path.rmdir()  # Hydra has made it, for a name that depends on the time
    return theirs


def _is_joblib() -> bool:
    """Whether this job is one of several that joblib runs side by side."""
    return HydraConfig.get().mode == RunMode.MULTIRUN and "joblib" in HydraConfig.get().launcher._target_


def _note_failure(line: str) -> None:
    """For the list at the end; the job may be in another process, and on a machine that does not see the file."""
    with suppress(KeyError, OSError), open(os.environ[FAILURES], "a") as file:
        file.write(f"{line}\n")


def threads_of_job() -> int | None:
    """A share of the cores for each of the ranks or jobs on this machine; None where there is only one at a time."""
    if "SLURM_CPUS_PER_TASK" in os.environ:
        return int(os.environ["SLURM_CPUS_PER_TASK"])
    if local_size() > 1:
        return max(1, n_cores() // local_size())
    if not _is_joblib():
        return None
    n_jobs = HydraConfig.get().launcher.n_jobs or 1
    return max(1, n_cores() // (n_jobs if n_jobs > 0 else n_cores()))


def launch(job: Callable[[], None]) -> None:
    """Start a `hydra.main` function from the command line."""
    show_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its exceptions on, instead of printing and exiting with 1
    _log_to_terminal()
    threading.excepthook = _end_of_thread
    with tempfile.TemporaryDirectory(prefix="tvae-") as folder:
        failures = Path(folder) / "failures"
        os.environ[FAILURES], os.environ[LAUNCHED_BY] = str(failures), str(os.getpid())
        try:
            job()
            leave()
        except KeyboardInterrupt:
            sys.exit(1)
        except Exception as error:
            if show_traceback:
                raise
            if failures.exists() and rank_here() == 0:
                print("jobs that failed:", *failures.read_text().splitlines(), sep="\n  ", file=sys.stderr)
            _give_up(error)


def _end_of_thread(end: threading.ExceptHookArgs) -> None:
    """A full disk is met by the thread that writes for TensorBoard, and told by the main one, which is handed it."""
    if not (isinstance(end.exc_value, OSError) and end.exc_value.errno in NO_ROOM):
        threading.__excepthook__(end)


def callable_as(module: str, function: str) -> None:
    """Let a command's module be called like the function of `tvae.api` whose name it has: `tvae.denoise(image)`."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            from tvae import api

            return getattr(api, function)(*args, **options)

    sys.modules[module].__class__ = CallableModule


def _give_up(error: Exception) -> None:
    """Say what is wrong and end the process, or let an unforeseen error through."""
    if isinstance(error, UserError):
        lines, code = list(error.problems), 2
    elif isinstance(error, (HydraException, OmegaConfBaseException)) or "Config group override" in str(error):
        lines, code = _composition_problems(error), 2
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        lines, code = [f"{error.filename or 'a file of the run'}: cannot be written ({error.strerror})"], 1
    elif isinstance(error, OSError) and error.filename is not None:
        lines, code = [f"{error.filename}: {error.strerror}"], 2
    elif isinstance(error, (TrainingFailed, DamagedCheckpoint, DiskFull, Interrupted)):
        lines, code = [str(error)], 1
    elif isinstance(error, LostRank):
        lines, code = [], 1  # it has been logged
    elif isinstance(error, RuntimeError) and "srun" in str(error):
        lines, code = ["hydra/launcher: this machine is no part of a SLURM cluster (there is no srun)"], 2
    elif type(error).__name__ == "TerminatedWorkerError":  # joblib's
        lines, code = [KILLED], 1
    elif type(error).__module__.startswith("submitit."):  # of a job on another machine; its text ends with the cause
        lines, code = [str(error).strip().splitlines()[-1]], 1
    else:
        raise error
    # Of what all ranks know, the leader tells; of what goes wrong before they are joined, the first on each machine.
    is_others = getattr(error, "is_shared", False) if is_joined() else local_rank() > 0
    who = f"process {rank_here()}: " if rank_here() else ""
    for line in lines if not (rank_here() and is_others) else ():
        print(f"error: {who}{line}" if code == 2 else f"{who}{line}", file=sys.stderr)
    sys.exit(code)


def _composition_problems(error: Exception) -> list[str]:
    """All overrides that cannot be composed, and what the check finds in the rest."""
    overrides = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
    searched = _search_path()
    accepted: list[str] = []
    problems: list[str] = []
    GlobalHydra.instance().clear()
    with initialize_config_dir(configuration.conf_dir(), version_base="1.3"):
        for override in (value for given in overrides for value in _values(given)):
            try:
                compose("config", [*searched, *accepted, override])
                accepted.append(override)
            except Exception as wrong:
                problems.append(f"{override}: {one_line(wrong)}{_hint(override)}")
        try:
            resolve(compose("config", searched + [o for o in accepted if not o.startswith("hydra")]))
        except UserError as found:
            problems += found.problems
    return problems or [one_line(error)]


def _search_path() -> list[str]:
    """What --config-dir has added to it, as an override."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    folder = parser.parse_known_args()[0].config_dir
    return [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]


def _values(override: str) -> list[str]:
    """A sweep `a=1,2` as `a=1` and `a=2`; anything else as it is."""
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
        if not parsed.is_sweep_override():
            return [override]
        return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
    except Exception:  # it is no override at all, which composing will say
        return [override]


def _hint(override: str) -> str:
    key, _, value = override.partition("=")
    if key == "hydra/launcher" and value.startswith(("joblib", "submitit", "slurm")):
        return f"; is it installed? pip install '.[{'joblib' if value == 'joblib' else 'slurm'}]'"
    return did_you_mean(key, [f.name for f in fields(Config)])


def one_line(error: BaseException) -> str:
    """The part of Hydra's and OmegaConf's messages that says what is wrong."""
    text = str(error.__cause__ if error.__cause__ is not None and "Error merging" in str(error) else error)
    dropped = ("full_key", "object_type", "reference_type", "See ", "Config search", "To append", "provider=")
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(dropped))


def _log_to_terminal(prefix: str = "") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(prefix.replace("%", "%%") + "%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if rank_here() else logging.INFO)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append what is logged to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
