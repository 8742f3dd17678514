"""What a command does with `image`: one picture, or every picture of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvae.core.errors import refuse
from tvae.options.schema import Config
from tvae.run.connection import join
from tvae.run.folder import is_folder, restore_folder
from tvae.run.session import train
from tvae.run.shared_model import restore_with_shared


def train_on_any(config: Config, path: Path) -> dict[str, Any]:
    """Train on the picture and restore it in `path`; or all those of a folder, in directories of their own below it."""
    if not is_folder(config.image):
        refuse(config.shared, "shared=true: is for a folder of pictures (image=FOLDER)")
        return train(config, path)
    refuse(config.shared and not join().is_alone, "shared=true: not under torchrun")
    return restore_folder(config, path, restore_with_shared(config, path) if config.shared else train)
