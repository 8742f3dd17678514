"""Preparations of a command before anything large is imported, which takes seconds.

Ctrl-C is a line and the exit code of an interruption from the start. Standard streams that the caller has closed lead
to nowhere, instead of into the next file that is opened. A working directory that is gone is told. Python programs that
import the package are left alone. Nothing is imported here that takes time.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys

COMMANDS = ("train", "denoise", "inpaint", "search")
RARELY, USUAL = 2_000_000, gc.get_threshold()  # new objects before garbage is looked for
INTERRUPTED = "interrupted; the same command resumes from the last checkpoint, if there is one"


def is_command() -> bool:
    """True if this process was started as `python -m tvae.NAME` or `tvae-NAME`."""
    modules = [name for flag, name in itertools.pairwise(sys.orig_argv) if flag == "-m"]
    scripts = [os.path.splitext(os.path.basename(script))[0] for script in sys.argv[:1]]
    return any(word in (f"tvae.{name}", f"tvae-{name}") for word in modules[:1] + scripts for name in COMMANDS)


def start() -> None:
    """Prepare the process; to be called before anything else.

    Until `ready` garbage is hardly ever looked for: what is imported stays, and looking takes half a second.
    """
    gc.set_threshold(RARELY)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, _end)
    if os.environ.get("HYDRA_FULL_ERROR", "0") != "1":
        sys.excepthook = _tell
    _open_streams()
    try:
        os.getcwd()
    except FileNotFoundError:  # what is imported next would end the process with a word of its own
        print("error: the working directory does not exist any more", file=sys.stderr)
        os._exit(2)


def ready() -> None:
    """Look for garbage as usual again, but not among what has been imported."""
    if gc.get_threshold()[0] == RARELY:
        gc.freeze()
        gc.set_threshold(*USUAL)


def _open_streams() -> None:
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest number that is free
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # as Python says that it was closed
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _tell(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Print a line about a failed import at once, because the code that ends such a process may fail as well."""
    lines = str(error).splitlines() or [""]
    told = f"cannot be started ({kind.__name__}: {lines[0]}); is there too little memory, or is it not installed?\n"
    os.write(2, told.encode(errors="backslashreplace"))
    os._exit(1)


def _end(number: int, frame: object) -> None:
    """Handle Ctrl-C before any work has begun."""
    if os.environ.get("RANK", "0") == "0":
        try:  # noqa: SIM105
            os.write(2, f"{INTERRUPTED}\n".encode())
        except OSError:  # nobody is there to be told
            pass
    os._exit(1)
