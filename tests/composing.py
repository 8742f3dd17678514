"""Configurations as the command line composes them."""

from hydra import compose, initialize_config_dir

from tvae.config.checks import resolve
from tvae.config.schema import conf_dir, register


def composed(*overrides, **options):
    """Unchecked; `options` as for Hydra's `compose`."""
    register()
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        return compose("config", list(overrides), **options)


def checked(*overrides):
    return resolve(composed(*overrides))
