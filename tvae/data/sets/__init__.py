"""All data sets: each is a module in this folder, which registers it."""

from __future__ import annotations

import importlib
import pkgutil

from tvae.data.dataset import DatasetConfig

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

KINDS: list[type[DatasetConfig]] = DatasetConfig.__subclasses__()
DATASETS: dict[str, type[DatasetConfig]] = {name: kind for kind in KINDS for name in kind.names}

__all__ = ["DATASETS", "KINDS"]
