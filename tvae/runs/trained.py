"""A trained model on its own, to restore other pictures of the same kind: one frame is trained on, many are restored.

Parameters stay as they are. The states of another picture's patches are searched for by some E-steps, from the same
states that training starts from; what follows is the restoration of any picture.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tvae.backends.native.threads import own_settings
from tvae.config.checks import parse_config
from tvae.config.paths_as_typed import as_written
from tvae.config.recipe import tell_choices
from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError, refuse
from tvae.inference.streams import derive
from tvae.io.atomic import check_regular
from tvae.io.sealed import DamagedCheckpoint, read, understood, write
from tvae.model.units import Units
from tvae.model.vae import Model, model_from
from tvae.restoration.cost import stages
from tvae.restoration.pipeline import restore_picture
from tvae.restoration.posterior_mean import Restored
from tvae.restoration.tiling import Bands
from tvae.runs.callbacks.progress import restoring
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.run_directory import check_ranks
from tvae.runs.session import Session
from tvae.runs.setup import make_fit, prepared

N_ROUNDS = 3  # of E-steps for a picture that was not trained on


def is_model(path: Path) -> bool:
    """True if `Trained.save` has written the file."""
    try:
        return "options" in read(path)
    except DamagedCheckpoint:
        return False


class Trained:
    def __init__(self, config: Config, model: Model, units: Units, report: dict[str, Any] | None = None):
        """`config`: with every option filled in for the picture trained on; `report`: elbo, history, noise_model."""
        self.config, self.model, self.units, self.report = config, model, units, report or {}

    def about(self) -> str:
        """The model in a few words."""
        options = self.config.dataset
        assert isinstance(options, ImageConfig)
        return f"{self.model.n_latents} latents, patches of {options.patch_size}x{options.patch_size}"

    @classmethod
    def on(cls, config: Config, picture: Picture, ranks: Ranks = Ranks()) -> Trained:  # noqa: B008
        """Train on a picture or a stack."""
        with own_settings():
            given, (config, dataset) = config, prepared(config, picture)
            check_ranks(config, dataset, dataset.fingerprint(), ranks)
            tell_choices(given, config)
            session = Session(config, dataset, None, ranks)
            session.try_starts()
            session.loop()
            found = None if dataset.picture is None else dataset.picture.noise_model
            report = {
                "elbo": session.fit.bound(),
                "history": session.record.history,
                "noise_model": None if found is None else found.facts(),
            }
        return cls(session.config, session.fit.model, session.fit.units, report)

    def restore(self, picture: Picture, ranks: Ranks = Ranks(), is_told: bool = False) -> Restored:  # noqa: B008
        """Restore a picture with the same number of channels, in the same units; `is_told`: log without a bar, too."""
        options = self.config.dataset
        assert isinstance(options, ImageConfig)
        assert options.patch_size is not None
        wanted = self.model.decoder.n_outputs // options.patch_size**2
        if picture.noisy.shape[2] != wanted == picture.image.n_channels:
            picture = picture.in_all_channels()
        n_channels = picture.noisy.shape[2]
        refuse(n_channels != wanted, f"{n_channels} channels, but the model was trained on pictures with {wanted}")
        open_again = replace(options, train_stride=None)  # by the size of this picture
        with own_settings():
            config, dataset = prepared(replace(self.config, dataset=open_again), picture)
            check_ranks(config, dataset, dataset.fingerprint(), ranks)
            fit = make_fit(config, dataset, None, ranks, self.units)
            parameters = {name: value.to(fit.device) for name, value in self.model.parameters_by_name().items()}
            fit.model.load(parameters, of_other_data=True)
            for i in range(N_ROUNDS):
                fit.search(fit.points, derive(config.seed, "other picture", i))
            with restoring(fit, stages(config, fit, picture), is_told) as watch:
                return restore_picture(fit, picture, config, Bands(ranks, watch))

    def save(self, path: Path) -> None:
        """Write options, parameters and units, whole or not at all. Only a model of that name is replaced."""
        refuse(not path.parent.is_dir(), f"{path}: there is no folder {path.parent}")
        refuse(path.is_dir(), f"{path}: is a folder; name a file in it")
        refuse(path.exists() and not is_model(path), f"{path}: exists already and is not a model")
        parameters = {name: value.cpu() for name, value in self.model.parameters_by_name().items()}
        about = {**self.model.spec(), "units": [self.units.mean, self.units.std]}
        write(
            path,
            {
                "options": OmegaConf.to_yaml(as_written(self.config)),
                "parameters": parameters,
                **about,
                "report": self.report,
            },
        )

    @classmethod
    def load(cls, path: Path) -> Trained:
        check_regular(path)
        refuse(not path.exists(), f"{path}: no such file")
        content = read(path)
        if "options" not in content:
            raise UserError(f"{path}: no model of pictures; a run directory is restored from by run=DIR")
        with understood(path):
            model = model_from(content, content["parameters"])
            units, report = Units(*content["units"]), dict(content.get("report", {}))
            return cls(parse_config(content["options"], path), model, units, report)
