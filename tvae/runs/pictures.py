"""Training on `image`: one picture, or every picture of a folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tvae.config.schema import Config
from tvae.data.picture import hash_of
from tvae.errors import refuse
from tvae.runs.distributed.connection import join
from tvae.runs.files import SHARED_MODEL
from tvae.runs.folder import check_folder, is_folder, restore_folder
from tvae.runs.run_directory import claimed
from tvae.runs.session import train
from tvae.runs.shared_model import restore_with_shared, stack_of

log = logging.getLogger("tvae.train")


def check_added_noise(config: Config) -> None:
    """Raise `UserError` where noise would be added to a user's own picture without a word that this is wanted.

    `train` is for experiments: it says what it does.
    """
    is_own = config.image is not None and config.clean is None
    is_unsaid = config.noise is not None and is_own and config.corruption == "none"
    refuse(
        is_unsaid and config.task != "train",
        f"noise={config.noise}: would be added to {config.image}; sigma={config.noise} states its "
        f"level, corruption=gaussian noise={config.noise} makes a benchmark of it",
    )
    if is_unsaid and join().is_leader:
        log.warning("noise=%s: is added to %s; sigma= states a level instead", config.noise, config.image)


def train_on_any(config: Config, path: Path) -> dict[str, Any]:
    """Train on the picture and restore it in `path`; or all those of a folder, in directories of their own below it."""
    check_added_noise(config)
    if not is_folder(config.image):
        refuse(config.shared, "shared=true: is for a folder of pictures (image=FOLDER)")
        return train(config, path)
    ranks = join()
    if ranks.is_leader:
        check_folder(config, path)
    stack = stack_of(config) if config.shared else None
    # The pictures themselves belong to runs of their own; a model of all of them is made of what it was trained on.
    fingerprint = hash_of([]) if stack is None else stack.fingerprint()
    with claimed(path, config, fingerprint, ranks):
        restore_one = train if stack is None else restore_with_shared(config, stack, path / SHARED_MODEL)
        return restore_folder(config, path, restore_one)
