"""The training loop (Algorithm 1): a generator that yields one report per epoch.

`Fit` holds everything that training changes. What it draws at random depends on the seed, the epoch and the data point
alone, so its `state_dict` needs no generator states: training that was stopped, even in the middle of an epoch, goes on
as if it had not been, also on another number of ranks. Each rank visits those of a minibatch that it owns; gradients
are added up at each step, the sums of the closed forms once an epoch.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.adam import Adam
from tvae.checkpoint import Part
from tvae.config import Config
from tvae.datasets import Dataset, Units, known_values, units_of
from tvae.decoder import Decoder
from tvae.device import choose_device, choose_threads
from tvae.inference import EStep, e_step
from tvae.learning import (
    Totals,
    make_schedule,
    set_gradient,
    solve_linear,
    update_prior_and_noise,
    weighty_states,
)
from tvae.model import Model
from tvae.native import has_gradient, supports, torch_on_one_thread
from tvae.points import Points
from tvae.ranks import ALONE, Ranks
from tvae.streams import Stream, derive, generator

ASKED_EVERY = 50  # minibatches


class TrainingFailed(Exception):
    """Training cannot go on: exit code 1."""

    is_shared = True  # by all ranks, who see the same sums


@dataclass(frozen=True)
class Epoch:
    """What is reported of an epoch, in the data's own units."""

    epoch: int
    elbo: float  # nats per data point, averaged over the epoch's visits
    elbo_test: float | None  # of held-out data, with the epoch's parameters
    sigma: float
    pi_sum: float  # latents that are on, on average
    n_accepted: float  # new states per data point
    learning_rate: float
    seconds: float


class Fit:
    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        folder: Path | None = None,
        ranks: Ranks = ALONE,
    ):
        """`folder`: of the states, where they are to be in a file."""
        self.config, self.ranks, self.device = config, ranks, device
        self.units = units_of(dataset, config.dataset.standardise)
        initial = make_model(config, dataset, self.units)
        about = (config, ranks, device, self.units, initial.pi)
        assert folder is not None or not config.states.memmap
        in_file = folder if config.states.memmap else None
        self.points = Points(*about, dataset.data, observed=dataset.observed, file=dataset.file, folder=in_file)
        # Nothing is learned from these; their states evolve as those of the training data do, one visit an epoch.
        self.held_out = None if dataset.held_out is None else Points(*about, dataset.held_out)
        self.dtype = self.points.dtype
        self.model = copy.deepcopy(initial).to(device, self.dtype)
        if config.compile:
            self.model.decoder.rest = torch.compile(self.model.decoder.rest)  # type: ignore[method-assign]
        parameters = list(self.model.decoder.parameters())
        assert config.lr.max is not None
        rate = config.lr.min if config.lr.kind == "cyclic" else config.lr.max
        self.optimiser = Adam(parameters, lr=rate, fused=device.type in ("cpu", "cuda"))
        self.n_batches = math.ceil(self.points.n_points / config.batch_size)
        assert config.epochs is not None
        self.n_epochs = config.epochs
        self.schedule = make_schedule(self.optimiser, config.lr, self.n_batches, self.n_epochs)
        self.epoch = 0  # epochs done
        self.batch = 0  # batches done in the epoch under way
        self.seconds = 0.0  # spent in the epoch under way
        self.totals = self._new_totals()
        self.n_wanting = torch.zeros(1, dtype=self.dtype, device=device)  # ranks that want to stop

    def _new_totals(self) -> Totals:
        return Totals(self.model, self.config.model.solver == "exact", self.points.observed is not None)

    @property
    def is_native(self) -> bool:
        """Whether the kernel does all that is worth more than one thread."""
        model = self.config.model
        by_kernel = supports(self.config.ea, self.model.pi) and has_gradient(self.model.decoder, self.model.pi)
        return by_kernel and (self.points.observed is None or (model.solver == "adam" and not model.impute))

    def epochs(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Epoch]:
        """Train up to `n_epochs`; `stop` is asked before each batch, and ends the training early."""
        while self.epoch < self.n_epochs:
            started = time.perf_counter()
            seed = derive(self.config.seed, "search", self.epoch)
            order, ends = self._order()
            with torch_on_one_thread() if self.is_native else nullcontext():
                while self.batch < self.n_batches and not self._stops(stop()):
                    start, size = self.batch * self.config.batch_size, self.config.batch_size
                    index = order[ends[self.batch] : ends[self.batch + 1]]
                    self.visit(index, seed, min(size, self.points.n_points - start))
                    self.batch += 1
            self.seconds += time.perf_counter() - started
            if self.batch < self.n_batches:
                return
            yield self.finish_epoch()

    def _stops(self, is_wanted: bool) -> bool:
        """Whether the ranks have agreed to stop here; `is_wanted`: by this one.

        To ask the others takes as long as to add up gradients, so the question goes along with those and is answered a
        minibatch later; where there are none, it is asked now and then.
        """
        if self.ranks.is_alone:
            return is_wanted
        if self.config.model.solver == "exact":
            return self.batch % ASKED_EVERY == 0 and self.ranks.any(is_wanted)
        is_agreed = self.n_wanting.item() > 0
        self.n_wanting.fill_(0 if is_agreed else is_wanted)
        return is_agreed

    def _order(self) -> tuple[Tensor, Tensor]:
        """This epoch's order of this rank's data points, and where among them each minibatch ends, after a zero."""
        size, own, n_points = self.config.batch_size, self.points.own, self.points.n_points
        order = torch.randperm(n_points, generator=generator(self.config.seed, "order", self.epoch))
        if self.ranks.is_alone:
            ends = (torch.arange(self.n_batches + 1) * size).clamp(max=n_points)
            return order.to(self.device), ends
        is_own = (order >= own.start) & (order < own.stop)
        n_before = torch.nn.functional.pad(is_own.cumsum(0), (1, 0))
        ends = n_before[(torch.arange(self.n_batches + 1) * size).clamp(max=n_points)]
        return (order[is_own] - own.start).to(self.device), ends

    def visit(self, index: Tensor, seed: int, n_in_batch: int | None = None) -> None:
        """One minibatch: E-step, then a step of the decoder.

        `index` (B,): this rank's data points in it; `n_in_batch`: those of all ranks.
        """
        x, observed, step = self._evolve(self.points, index, seed)
        rows = weighty_states(step, self.config.prune)
        self.totals.add(x, step, rows, observed)
        if self.config.model.solver == "adam":
            set_gradient(self.model, x, rows, observed, self.config.model.impute, n_in_batch)
            gradients = [p.grad for p in self.model.decoder.parameters() if p.grad is not None]
            self.ranks.add([*gradients, self.n_wanting])
            self.optimiser.step()
            self.schedule.step()

    def _evolve(self, points: Points, index: Tensor, seed: int) -> tuple[Tensor, Tensor | None, EStep]:
        """An E-step on data points of this rank, which are returned with it."""
        x, observed = points.rows(index)
        rng = Stream(seed, index + points.own.start)
        step = e_step(self.model, self.config.ea, x, points.take_states(index), rng, observed)
        points.put_states(index, step.packed)
        return x, observed, step

    def finish_epoch(self) -> Epoch:
        """The closed-form updates, and the report."""
        totals, units = self.totals, self.units
        self.ranks.add(list(totals.sums.values()))
        n_points = totals["n_points"].item()
        elbo = units.elbo_to_data(totals["elbo"].item() / n_points, totals["n_observed"].item() / n_points)
        self._check(elbo)
        if self.config.model.solver == "exact":
            solve_linear(self.model, totals)
        update_prior_and_noise(self.model, totals)
        self.ranks.share(list(self.model.state_dict().values()))  # machines may round differently
        with torch_on_one_thread() if self.is_native else nullcontext():
            elbo_test = None if self.held_out is None else self._check(self._visit_held_out(self.held_out))
        self.epoch += 1
        report = Epoch(
            epoch=self.epoch,
            elbo=elbo,
            elbo_test=elbo_test,
            sigma=units.std * math.sqrt(self.model.sigma2.item()),
            pi_sum=self.model.pi.sum().item(),
            n_accepted=totals["n_accepted"].item() / n_points,
            learning_rate=float(self.schedule.get_last_lr()[0]),
            seconds=self.seconds,
        )
        self.batch, self.seconds, self.totals = 0, 0.0, self._new_totals()
        return report

    def _visit_held_out(self, held_out: Points) -> float:
        """E-steps with fixed parameters; returns the ELBO in nats per data point, in the data's units."""
        seed, total = derive(self.config.seed, "test", self.epoch), torch.zeros(1, dtype=torch.float64)
        for index in torch.arange(len(held_out.own), device=self.device).split(self.config.batch_size):
            _, _, step = self._evolve(held_out, index, seed)
            total += step.elbo.double().sum().item()
        self.ranks.add([total])
        return self.units.elbo_to_data(total.item() / held_out.n_points, held_out.data.shape[1])

    def _check(self, elbo: float) -> float:
        if not math.isfinite(elbo):
            is_unseen = self.points.is_read_by_need
            raise TrainingFailed(
                f"the ELBO became {elbo} in epoch {self.epoch + 1}; a lower learning rate (lr.max) or a larger "
                f"model.sigma2 at the start may help{', or are there NaN among the data?' * is_unseen}"
            )
        return elbo

    def state_dict(self) -> dict[str, Any]:
        """All but the states, which `parts` has. To be called on all ranks."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "totals": self.ranks.gather({name: value.cpu() for name, value in self.totals.sums.items()}),
            "sizes": self.model.decoder.sizes,
            "activation": self.model.decoder.activation,
            "units": [self.units.mean, self.units.std],
        }

    def parts(self) -> Iterator[dict[str, Tensor]]:
        """The states of this rank, some at a time."""
        if self.held_out is not None:
            yield from self.held_out.parts("test_states")
        yield from self.points.parts("states")

    def load_states(self, parts: list[Part]) -> None:
        self.points.load_states(parts, "states")
        if self.held_out is not None:
            self.held_out.load_states(parts, "test_states")

    def load_state_dict(self, content: dict[str, Any], parts: list[Part]) -> None:
        """Of any number of ranks."""
        self.load_states(parts)
        self.model.load_state_dict(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.schedule.load_state_dict(dict(content["schedule"]))
        self.epoch, self.batch, self.seconds = content["epoch"], content["batch"], content["seconds"]
        if len(content["totals"]) == self.ranks.size:
            totals = [content["totals"][self.ranks.rank]]
        else:
            totals = content["totals"] if self.ranks.is_leader else []
        for name, value in self.totals.sums.items():
            value.copy_(sum((sums[name] for sums in totals), start=torch.zeros_like(value, device="cpu")))


def make_fit(config: Config, dataset: Dataset, folder: Path | None = None, ranks: Ranks = ALONE) -> Fit:
    """Training at its start, on the device and with the threads that suit the work."""
    assert config.model.n_latents is not None
    assert config.model.hidden is not None
    sizes = [config.model.n_latents, *config.model.hidden, dataset.data.shape[1]]
    torch.set_num_threads(config.threads or choose_threads(config.batch_size * config.states.n_states, sizes))
    return Fit(config, dataset, choose_device(config.device, config.precision), folder, ranks)


def make_model(config: Config, dataset: Dataset, units: Units) -> Model:
    """Theta at the start: Glorot weights, zero biases, `pi` and `sigma2` as configured."""
    wanted = config.model
    assert wanted.n_latents is not None
    assert wanted.hidden is not None
    rng = generator(config.seed, "weights")
    decoder = Decoder(wanted.n_latents, wanted.hidden, dataset.data.shape[1], wanted.activation, rng)
    pi = torch.full((wanted.n_latents,), wanted.pi or 1 / wanted.n_latents, dtype=torch.float64)
    if wanted.sigma2 is not None:
        sigma2 = wanted.sigma2 / units.std**2
    else:
        sigma2 = known_values(dataset).double().var(correction=0).item() / units.std**2
    return Model(decoder, pi, sigma2)
