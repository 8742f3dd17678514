"""A sweep as a whole: directories named by what varies, the place of each job in it, and a table at the end.

What all jobs have in common names the folder of the sweep (below `outputs/train`, unless `hydra.sweep.dir` is given),
what varies the directories in it; the table of results lies beside them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import string
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from tvae.config.schema import FREE
from tvae.io.atomic import write_atomically
from tvae.runs.files import TABLE
from tvae.runs.run_directory import read_metrics

log = logging.getLogger("tvae.train")

JOBS = "TVAE_JOBS"  # in the environment: the file to which jobs add their directories and options
N_JOBS = "TVAE_N_JOBS"  # in the environment: how many there are
OBJECTIVES = ("psnr", "elbo_test", "elbo")  # the first that all finished jobs have, the highest first
COLUMNS = (*OBJECTIVES, "ssim", "bars_found", "sigma", "epochs", "seconds_total")


NAME_MAX = 150  # characters of a run's directory name, before the rest is replaced by a hash


def run_name(overrides: str) -> str:
    """A run's directory name from its overrides: one path component, whatever the values hold."""
    plain = string.ascii_letters + string.digits + "=,.+-_"
    name = "".join(c if c in plain else "_" for c in overrides).strip(".") or "default"
    if name == overrides and len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(overrides.encode(errors="surrogateescape")).hexdigest()  # a name may be no UTF-8
    return name if overrides == "" else f"{name[:NAME_MAX]}-{digest[:8]}"


OmegaConf.register_new_resolver("run_name", run_name, replace=True)


class NameByWhatVaries(Callback):
    """Called by Hydra (conf/config.yaml) before a sweep."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        counts = count_values(config)
        os.environ[N_JOBS] = str(_product(counts.values()))
        fixed = [name for name, count in counts.items() if count == 1]
        if len(fixed) == len(counts):
            return
        with read_write(config), open_dict(config):
            hydra = config.hydra
            excluded = ",".join(f"'{name}'" for name in dict.fromkeys((*FREE, *fixed)))
            hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys=[{excluded}]")
            own = OmegaConf.to_container(hydra.sweep, resolve=False)
            assert isinstance(own, dict)
            words = sorted(word for word in hydra.overrides.task if _name(word) in fixed and _name(word) not in FREE)
            if own["dir"] == "outputs/${hydra.job.name}" and words:
                common = ",".join(["sweep", *words])  # no single run is called so
                hydra.sweep.dir = f"{hydra.sweep.dir}/{run_name(common)}"
                hydra.overrides.hydra.append(f"hydra.sweep.dir={_quoted(hydra.sweep.dir)}")


def count_values(config: DictConfig) -> dict[str, int]:
    """The number of values of each option of a sweep; {} where Hydra has to look in its folders for them."""
    own = (config.hydra.sweeper.get("params") or {}).items()
    counts = {}
    try:
        for override in OverridesParser.create().parse_overrides(
            [*(f"{name}={value}" for name, value in own), *config.hydra.overrides.task]
        ):
            n = sum(1 for _ in override.sweep_string_iterator()) if override.is_sweep_override() else 1
            counts[override.key_or_group] = n
    except HydraException:  # which Hydra tells itself
        return {}
    return counts


def _product(counts: Any) -> int:
    total = 1
    for count in counts:
        total *= count
    return total


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Job(NamedTuple):
    path: Path
    options: dict[str, str]  # as given for it


def note_job(path: Path) -> None:
    """Say which job of the sweep begins, and note it for the table; jobs may be in other processes."""
    job, total = HydraConfig.get(), os.environ.get(N_JOBS, "0")
    if int(total) > 1:
        log.info("[%d/%s] %s", job.job.num + 1, total, path.name)
    content = {"path": str(path), "options": {_name(word): word.partition("=")[2] for word in job.overrides.task}}
    with suppress(KeyError, OSError), open(os.environ[JOBS], "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(content) + "\n")


def tell_sweep(jobs: Path) -> None:
    """Log the table of a sweep whose jobs are noted in a file, and write it as CSV.

    Nothing for fewer than two jobs, or where none has left results.
    """
    if not jobs.is_file():
        return
    lines = [json.loads(line) for line in jobs.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
    found = {line["path"]: Job(Path(line["path"]), line["options"]) for line in lines}
    if len(found) < 2 or not any(read_metrics(job.path) for job in found.values()):
        return
    rows = table_of([*found.values()])
    folders = {job.path.parent for job in found.values()}
    log.info("%s", as_text(rows))
    if len(folders) == 1:
        (folder,) = folders
        with suppress(OSError):  # the table has been told
            write_atomically(folder / TABLE, _as_csv(rows))
            log.info("%s", folder / TABLE)


def table_of(jobs: list[Job]) -> list[dict[str, Any]]:
    """A row for each job: the options that vary, how it ended, results, the directory; the best first."""
    names = dict.fromkeys(name for job in jobs for name in job.options)
    varying = [name for name in names if len({job.options.get(name) for job in jobs}) > 1]
    metrics = [read_metrics(job.path) or {} for job in jobs]
    finished = [found for found in metrics if found.get("status") == "finished"]
    known = [name for name in COLUMNS if any(found.get(name) is not None for found in metrics)]
    objective = next((name for name in OBJECTIVES if all(found.get(name) is not None for found in finished)), None)
    rows = [
        {
            **{name: job.options.get(name, "") for name in varying},
            "status": found.get("status", "failed"),
            **{name: found.get(name) for name in known},
            "directory": job.path.name,
        }
        for job, found in zip(jobs, metrics, strict=True)
    ]

    def rank(row: dict[str, Any]) -> tuple[bool, float]:
        is_done = row["status"] == "finished" and objective is not None
        return (not is_done, -row[objective] if is_done and objective is not None else 0.0)

    return sorted(rows, key=rank)


def as_text(rows: list[dict[str, Any]]) -> str:
    """Aligned columns."""
    names = list(rows[0])
    cells = [names, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.1f}"
    return "" if value is None else str(value)


def _as_csv(rows: list[dict[str, Any]]) -> bytes:
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue().encode("utf-8", "surrogateescape")
