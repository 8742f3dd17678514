"""Kill a run at random moments, resume it each time, and compare its end with that of an undisturbed one.

    python -m scripts.fuzz.chaos [--kills 100] [--ranks 1] [--seed 0] [--out outputs/chaos]

A small picture is denoised, with a checkpoint after every epoch or more often, and states in memory or in a file. A
kill is `kill -9` of one process, at a moment drawn from the time that a whole run takes; the other ranks are then told
to end, as torchrun would. A run that reaches its end is compared, byte by byte but for the seconds it took, and another
one is begun, until there have been enough kills.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import multiprocessing
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tvae.data.named import camera
from tvae.io.image_file import write_image
from tvae.runs import checkpoint
from tvae.runs.callbacks.figures import FIGURES
from tvae.runs.callbacks.output_pictures import OUTPUT_PICTURES
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import FIGURE_DIR, FINGERPRINT, HISTORY, METRICS

NOTICES_WITHIN, ENDS_WITHIN = 5.0, 60.0  # seconds, for ranks that have lost one, and for those that are told to end
FILES = (FINGERPRINT, *OUTPUT_PICTURES, *(f"{FIGURE_DIR}/{name}" for name in FIGURES))

context = multiprocessing.get_context("forkserver")  # a process that has all imported, from which others start at once
context.set_forkserver_preload(["tvae.denoise", "torch.utils.tensorboard", "torch._dynamo", "matplotlib.pyplot"])


def _be_command(command: str, options: Sequence[str], environment: dict[str, str], log: Path) -> None:
    """Run `python -m tvae.COMMAND OPTIONS` in a new process, with its output in a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = [f"{command}.py", *options]
    importlib.import_module("tvae.search.__main__" if command == "search" else f"tvae.{command}").main()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(
    command: str, options: Sequence[str], log: Path, n_ranks: int = 1, late: Sequence[float] = ()
) -> list[BaseProcess]:
    """The ranks of a command, as torchrun would start them; `late`: seconds before each of them."""
    port = free_port()
    processes: list[BaseProcess] = []
    for rank in range(n_ranks):
        environment = {} if n_ranks == 1 else {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        time.sleep(late[rank] if late else 0)
        process = context.Process(target=_be_command, args=(command, list(options), environment, log), daemon=True)
        process.start()
        processes.append(process)
    return processes


def wait(processes: Sequence[BaseProcess], seconds: float = 300.0) -> list[int | None]:
    """Exit codes of the processes; None for those that are still running after so long."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [process.exitcode for process in processes]


def result(directory: Path) -> dict[str, Any]:
    """Everything a run has made, without the time it took."""
    saved = checkpoint.load_newest(directory, Ranks())
    assert saved is not None
    metrics = json.loads((directory / METRICS).read_text())
    with open(directory / HISTORY) as file:
        history = [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in saved.content["history"]]
    return {
        "fit": {name: value for name, value in saved.content["fit"].items() if name != "seconds"},
        "states": [(part.name, part.load()) for part in saved.parts],
        "rows": rows,
        "history": history,
        "metrics": {name: value for name, value in metrics.items() if not name.startswith("seconds")},
        **{name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()},
    }


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """The places where two results are not the same to the last bit."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for name in a for found in differences(a[name], b[name], f"{where}/{name}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [found for i, pair in enumerate(zip(a, b, strict=True)) for found in differences(*pair, f"{where}/{i}")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    return [] if a == b else [where or "/"]


class Tormentor:
    """Runs of a command in a folder, and kills at random moments."""

    def __init__(self, options: Sequence[str], folder: Path, n_ranks: int, seed: int):
        self.options, self.folder, self.n_ranks, self.rng = options, folder, n_ranks, random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        wait(self.begin("warm"))  # compiles what is compiled on first use
        started = time.monotonic()
        codes = wait(self.begin("undisturbed"))
        self.duration = time.monotonic() - started
        if any(codes):
            sys.exit(f"the undisturbed run ended with {codes}; see {folder / 'undisturbed.log'}")
        self.expected = result(folder / "undisturbed")

    def begin(self, name: str, *more: str) -> list[BaseProcess]:
        where = f"hydra.run.dir={self.folder / name}"
        return start("denoise", [*self.options, where, *more], self.folder / f"{name}.log", self.n_ranks)

    def run(self, name: str, n_kills: int, more: Sequence[str]) -> list[float]:
        """Run to the end, killed at most so often on the way; returns the moments of the kills."""
        killed_at: list[float] = []
        while True:
            # A checkpoint after every epoch or also within epochs: no result may change.
            processes = self.begin(name, *more, f"checkpoint_seconds={self.rng.choice((0, 0.02))}")
            moment = self.rng.uniform(0, 1.1 * self.duration)
            if len(killed_at) < n_kills and None in wait(processes, moment):
                if self.kill_one(processes):
                    killed_at.append(moment)
                if None in wait(processes, ENDS_WITHIN):
                    sys.exit(f"{name}: a process outlived another by {ENDS_WITHIN:.0f} s")
                if any(process.exitcode != 0 for process in processes):
                    continue
            codes = wait(processes)
            if any(codes):
                sys.exit(f"{name}: ended with {codes}; see {self.folder / name}.log")
            return killed_at

    def kill_one(self, processes: Sequence[BaseProcess]) -> bool:
        """Kill one process; True if it was still running. The others end by themselves, or are told to."""
        victim = self.rng.choice(processes)
        is_alive = victim.is_alive() and victim.pid is not None
        if is_alive:
            victim.kill()
        for process in processes:  # one that waits for the others to come knows nothing yet
            if None in wait([process], NOTICES_WITHIN):
                process.terminate()
        return is_alive


def torment(
    options: Sequence[str], folder: Path, n_kills: int, n_ranks: int, seed: int, report: Callable[[str], Any] = print
) -> tuple[int, int]:
    """(finished runs, differences found), after so many kills."""
    tormentor = Tormentor(options, folder, n_ranks, seed)
    n_done, n_runs, n_different = 0, 0, 0
    while n_done < n_kills:
        name = f"run_{n_runs}"
        killed_at = tormentor.run(name, n_kills - n_done, [f"states.memmap={n_runs % 2 == 1}"])
        found = differences(tormentor.expected, result(folder / name))
        n_done += len(killed_at)
        n_runs += 1
        n_different += bool(found)
        moments = " ".join(f"{moment:.2f}" for moment in killed_at)
        times = f" ({moments} s)" if killed_at else ""
        report(f"{name}: killed {len(killed_at)} times{times}, {', '.join(found) or 'no difference'}")
    return n_runs, n_different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/chaos"))
    options = parser.parse_args()
    if options.out.exists() and not (options.out / "piece.png").exists() and any(options.out.iterdir()):
        sys.exit(f"{options.out}: holds other things; name another folder with --out")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    given, report = (options.out, options.kills, options.ranks, options.seed), partial(print, flush=True)
    n_runs, n_different = torment(small_run(options.out), *given, report)
    print(f"{options.kills} kills, {options.ranks} ranks, {n_runs} runs compared, {n_different} of them different")
    sys.exit(bool(n_different))


def small_run(folder: Path) -> list[str]:
    """Options of a run of about two seconds, on a piece of a picture."""
    write_image(folder / "piece.png", camera().pixels[100:132, 200:232, 0].astype("uint8"))
    return [f"image={folder / 'piece.png'}", "dataset=file", "epochs=8", "model.n_latents=32", "restore_every=4"]


if __name__ == "__main__":
    main()
