"""One model for all pictures of a folder: trained on parts of them as on the pages of a stack, and kept in a file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.errors import Failure
from tvae.io.layout import Layout
from tvae.restoration.metrics import quality
from tvae.runs.callbacks.output_pictures import write_pictures
from tvae.runs.callbacks.record import write_json
from tvae.runs.distributed.connection import join
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import METRICS
from tvae.runs.folder import pictures_of, tasks_of
from tvae.runs.log_lines import closing
from tvae.runs.result import check_kind, check_output, deliver, is_complete
from tvae.runs.run_directory import claimed, read_metrics
from tvae.runs.trained import Trained

log = logging.getLogger("tvae.train")

PICTURES_MAX = 50  # trained on, evenly over all of them


def restore_with_shared(config: Config, stack: Picture, path: Path) -> Callable[[Config, Path], dict[str, Any]]:
    """A function that restores one picture in a run directory, with the model in `path`, trained on a stack."""
    ranks = join()
    (is_there, *_) = ranks.gather(path.is_file())
    if config.restart or not is_there:
        made = Trained.on(config, stack, ranks)
        if ranks.is_leader:
            made.save(path)
        ranks.meet()
    trained = Trained.load(path)

    def restore_one(own: Config, directory: Path) -> dict[str, Any]:
        ranks, picture = join(), own.dataset.open(own)  # connected anew after a failure
        if ranks.is_leader:
            check_output(own, directory)
        check_kind(own, picture)
        with claimed(directory, own, picture.fingerprint(), ranks):
            (done, is_kept), *_ = ranks.gather((read_metrics(directory), is_complete(directory, picture)))
            if done is None or done.get("status") != "finished" or not is_kept:
                done = _restored(trained, own, picture, directory, ranks)
            else:
                log.info("%s is finished already; restart=true starts over", directory)
            if ranks.is_leader:
                deliver(own, directory, picture)
        return done

    return restore_one


def _restored(trained: Trained, config: Config, picture: Picture, directory: Path, ranks: Ranks) -> dict[str, Any]:
    """Restore a picture, write what there is of it, and return what metrics.json holds."""
    started = time.perf_counter()
    restored = trained.restore(picture, ranks, is_told=True)
    done = {"status": "finished", **quality(picture, restored), "noise_level": restored.noise_level}
    done["seconds"] = time.perf_counter() - started
    if ranks.is_leader:
        write_pictures(directory, picture, restored)
        write_json(directory / METRICS, done)
        log.info("%s", closing(config, picture, restored, {**done, "seconds_total": done["seconds"]}, directory))
    return done


def stack_of(config: Config) -> Picture:
    """The middle of some pictures of the folder, as large as all of them have it; other kinds are left out."""
    files = pictures_of(config)
    chosen = [files[i] for i in np.unique(np.linspace(0, len(files) - 1, PICTURES_MAX).round().astype(int))]
    pictures: list[Picture] = []
    for task in tasks_of(replace(config, output=""), chosen, Path()):
        try:
            picture = task.config.dataset.open(task.config)
        except Failure:
            continue  # what is wrong with it is told when its turn comes
        if not pictures or _kind(picture) == _kind(pictures[0]):
            pictures.append(picture)
    if not pictures:
        raise Failure(f"image={config.image}: none of {len(chosen)} pictures can be read")
    height, width = (min(picture.noisy.shape[axis] for picture in pictures) for axis in (0, 1))

    def middle(array: np.ndarray) -> np.ndarray:
        top, left = (array.shape[0] - height) // 2, (array.shape[1] - width) // 2
        return array[top : top + height, left : left + width]

    tall = np.concatenate([middle(picture.noisy) for picture in pictures])
    known = [np.ones(picture.noisy.shape, bool) if picture.known is None else picture.known for picture in pictures]
    missing = ~np.concatenate([middle(each) for each in known])
    layout = Layout("TYXC", (len(pictures), height, width, tall.shape[2]))
    image = replace(pictures[0].image, pixels=tall, layout=layout, alpha=None, missing=None)
    return Picture(image, tall, missing=missing if missing.any() else None)


def _kind(picture: Picture) -> tuple[Any, ...]:
    return picture.noisy.shape[2], picture.image.dtype, picture.n_pages
