"""Algorithm 1 of the paper, from top to bottom.

    for each epoch:                                                                                `Fit.epochs`
        for each minibatch:                                                                        `Fit.visit`
            E-step: for each data point n, repeated for each generation
                selection     parents from the states, in proportion to their fitness             Eq. (9)
                mutation      children: parents with latents flipped
                union         of Phi_n and all children
                truncation    the S states with the highest log-joint stay as Phi_n               Eqs. (7), (8)
            Adam step on the decoder's weights, with q over Phi_n                                 Eqs. (3), (4)
        pi and sigma2 in closed form                                               Eq. (5)         `Fit.finish_epoch`

`Fit` holds everything that training changes. What it draws at random depends on the seed, the epoch and the data point
alone, so its `state_dict` needs no generator states: training that was stopped, even in the middle of an epoch, is
resumed as if it had not been, also on another number of ranks. Each rank visits those data points of a minibatch that
it owns; gradients are added up at each step, the sums of the closed forms once an epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor

from tvae.errors import TrainingFailed
from tvae.fields import option
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig
from tvae.inference.streams import Stream, derive, generator
from tvae.model.units import Units
from tvae.model.vae import Model, ModelConfig
from tvae.training.backend import Backend, Minibatch, Stretch
from tvae.training.m_step import Totals, update_closed_forms
from tvae.training.points import Points
from tvae.training.team import ALONE, Team

ASK_EVERY = 50  # minibatches
BATCH = 32  # data points in a minibatch by default
MOMENT = 0.05  # seconds that one call of the backend may take: it cannot be stopped meanwhile
MOST_AT_ONCE = 64  # minibatches in one call
THINNED = 4  # one in so many data points is visited in thinned epochs


@dataclass
class LrConfig:
    kind: str = option("cyclic", "schedule of the learning rate", choices=("cyclic", "decay", "constant"))
    min: float = option(1e-4, "cyclic: lowest rate", gt=0)
    max: Optional[float] = option(
        1e-2, "cyclic: highest rate; else the rate at the start; null: by the data, of an image by its noise",
        is_open=True, gt=0,
    )  # fmt: skip
    epochs_per_cycle: Optional[float] = option(
        20, "cyclic: epochs from lowest to highest and back; null: all, of bars 20", is_open=True, gt=0
    )
    epochs_to_half: float = option(20, "decay: epochs in which the rate halves", gt=0)

    @property
    def start(self) -> float:
        """The rate before the first step."""
        assert self.max is not None
        return self.min if self.kind == "cyclic" else self.max


@dataclass
class FitConfig:
    """The part of a configuration that training uses."""

    model: ModelConfig = field(default_factory=ModelConfig)
    states: StatesConfig = field(default_factory=StatesConfig)
    ea: EaConfig = field(default_factory=EaConfig)
    lr: LrConfig = field(default_factory=LrConfig)
    epochs: Optional[int] = option(None, "visits of all data points; null: by the data", ge=1)
    n_thinned: Optional[int] = option(
        None, f"epochs at the start that visit one in {THINNED} data points; null: 0, of images by their size", ge=0
    )
    batch_size: Optional[int] = option(None, "data points in a minibatch; null: by the device", ge=1)
    prune: float = option(1e-3, "share of q left out of the M-step, 0: exact", ge=0, lt=1)
    seed: int = option(0, "seed of weights, initial states and search", ge=0, for_arrays=False)


@dataclass(frozen=True)
class Epoch:
    """The report of an epoch, in the data's own units."""

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
        config: FitConfig,
        model: Model,
        backend: Backend,
        points: Points,
        units: Units = Units(),  # noqa: B008
        held_out: Points | None = None,
        team: Team = ALONE,
    ):
        """`held_out`: data that nothing is learned from; their states evolve too, by one visit an epoch."""
        assert config.epochs is not None
        self.config, self.model, self.backend, self.units, self.team = config, model, backend, units, team
        self.points, self.held_out = points, held_out
        self.device = model.pi.device
        self.n_epochs, self.batch_size = config.epochs, config.batch_size or BATCH
        self.optimiser = backend.optimiser(model.parameters(), config.lr.start)
        self.schedule = make_schedule(
            self.optimiser, config.lr, math.ceil(points.n_points / self.batch_size), self.n_epochs
        )
        self.epoch = 0  # epochs done
        self.batch = 0  # batches done in the epoch under way
        self.seconds = 0.0  # spent in the epoch under way
        self.pace = Pace(backend.stretch is not None and team.is_alone and not self.is_exact)
        self.totals = self._new_totals()
        self.n_wanting = torch.zeros(1, dtype=model.pi.dtype, device=self.device)  # ranks that want to stop

    @property
    def is_exact(self) -> bool:
        """True if the decoder is solved for once an epoch, not trained by Adam."""
        return self.config.model.solver == "exact"

    def n_visited(self, epoch: int) -> int:
        """Data points that this epoch visits, on all ranks."""
        is_thinned = epoch < (self.config.n_thinned or 0)
        return math.ceil(self.points.n_points / THINNED) if is_thinned else self.points.n_points

    def n_batches(self, epoch: int) -> int:
        return math.ceil(self.n_visited(epoch) / self.batch_size)

    def _new_totals(self) -> Totals:
        return Totals(self.model, self.is_exact, self.points.is_masked, self.config.model.counts_imputed)

    def epochs(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Epoch]:
        """Train up to `n_epochs`; `stop` is asked between minibatches, every 50 ms, and ends the training early."""
        size = self.batch_size
        while self.epoch < self.n_epochs:
            started = time.perf_counter()
            seed = derive(self.config.seed, "search", self.epoch)
            order, ends = self._order()
            n_visited, n_batches = self.n_visited(self.epoch), self.n_batches(self.epoch)
            with self.backend.at_work():
                while self.batch < n_batches and not self._stops(stop()):
                    n = min(self.pace.n_at_once, n_batches - self.batch)
                    index = order[ends[self.batch] : ends[self.batch + n]]
                    with self.pace.kept():
                        self.visit(index, seed, min(n * size, n_visited - self.batch * size))
                    self.batch += n
            self.seconds += time.perf_counter() - started
            if self.batch < n_batches:
                return
            with self.backend.at_work():
                report = self.finish_epoch()
            yield report

    def _stops(self, is_wanted: bool) -> bool:
        """True if the ranks have agreed to stop here; `is_wanted`: this one wants to.

        Asking the others takes as long as adding up gradients, so the question is sent along with them and answered a
        minibatch later. An exact M-step has no gradients: the others are asked every `ASK_EVERY` minibatches.
        """
        if self.team.is_alone:
            return is_wanted
        if self.is_exact:
            return self.batch % ASK_EVERY == 0 and self.team.any(is_wanted)
        is_agreed = self.n_wanting.item() > 0
        self.n_wanting.fill_(0 if is_agreed else is_wanted)
        return is_agreed

    def _order(self) -> tuple[Tensor, Tensor]:
        """This epoch's order of this rank's data points, and where among them each minibatch ends, after a zero."""
        size, own, n_points = self.batch_size, self.points.own, self.n_visited(self.epoch)
        order = torch.arange(self.points.n_points)
        if not self.is_exact or n_points < len(order):
            order = torch.randperm(len(order), generator=generator(self.config.seed, "order", self.epoch))[:n_points]
        if self.is_exact:  # any order will do, and neighbours try the same latents
            order = order.sort().values
        ends = (torch.arange(self.n_batches(self.epoch) + 1) * size).clamp(max=n_points)
        if self.team.is_alone:
            return order.to(self.device), ends
        is_own = (order >= own.start) & (order < own.stop)
        n_before = torch.nn.functional.pad(is_own.cumsum(0), (1, 0))
        return (order[is_own] - own.start).to(self.device), n_before[ends]

    def visit(self, index: Tensor, seed: int, n_in_batch: int) -> None:
        """One minibatch: the E-step of its data points, then a step of Adam. Or several at once, if the backend can.

        `index` (B,): this rank's data points in it; `n_in_batch`: those of all ranks.
        """
        points, config = self.points, self.config
        x, observed = points.rows(index)
        rng = Stream(seed, index + points.own.start)
        batch = Minibatch(x, observed, points.sets.take(index), rng, n_in_batch)
        if self.backend.stretch is not None and n_in_batch > self.batch_size:
            rates = next_rates(self.schedule, math.ceil(n_in_batch / self.batch_size))
            stretch = Stretch(batch, self.batch_size, self.optimiser, rates)
            points.sets.put(index, self.backend.stretch(self.model, config.ea, config.prune, stretch, self.totals))
            return
        # selection, mutation, union, truncation: Eqs. (7) to (9); then the gradient of Eq. (4) under the new q
        packed, gradients = self.backend.visit(self.model, config.ea, config.prune, batch, self.totals)
        points.sets.put(index, packed)
        if self.is_exact:
            return
        # Adam
        self.team.add([*gradients, self.n_wanting])
        for parameter, gradient in zip(self.optimiser.param_groups[0]["params"], gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        self.schedule.step()

    def finish_epoch(self) -> Epoch:
        """pi and sigma2 in closed form, and the report."""
        totals, units = self.totals, self.units
        self.team.add(list(totals.sums.values()))
        n_points = totals["n_points"].item()
        elbo = units.elbo_to_data(totals["elbo"].item() / n_points, totals["n_observed"].item() / n_points)
        elbo += self.points.log_volume
        self._check(elbo)
        update_closed_forms(self.model, totals)  # Eq. (5)
        self.team.share(list(self.model.state_dict().values()))  # machines may round differently
        elbo_test = (
            None
            if self.held_out is None
            else self._check(self.search(self.held_out, derive(self.config.seed, "test", self.epoch)))
        )
        self.epoch += 1
        report = Epoch(
            epoch=self.epoch,
            elbo=elbo,
            elbo_test=elbo_test,
            sigma=self.model.likelihood.sigma(units),
            pi_sum=self.model.pi.sum().item(),
            n_accepted=totals["n_accepted"].item() / n_points,
            learning_rate=float(self.schedule.get_last_lr()[0]),
            seconds=self.seconds,
        )
        self.batch, self.seconds, self.totals = 0, 0.0, self._new_totals()
        return report

    def bound(self) -> float:
        """The ELBO of the parameters as they are, with the states as they are."""
        return self.search(self.points, None)

    def search(self, points: Points, seed: int | None) -> float:
        """E-steps with fixed parameters; returns the ELBO in nats per data point, in the data's units.

        Without a `seed` the states are evaluated and stay as they are.
        """
        total = torch.zeros(1, dtype=torch.float64)
        with self.backend.at_work():
            for index in torch.arange(len(points.own), device=self.device).split(self.batch_size):
                (x, observed), packed, number = points.rows(index), points.sets.take(index), index + points.own.start
                rng = None if seed is None else Stream(seed, number)
                trained = number if points is self.points else None
                step = self.backend.e_step(self.model, self.config.ea, x, packed, rng, observed, trained)
                if rng is not None:  # else only their order could change, and with it what is drawn from them later
                    points.sets.put(index, step.packed)
                total += step.elbo.double().sum().item()
        self.team.add([total])
        return self.units.elbo_to_data(total.item() / points.n_points, points.n_values) + points.log_volume

    def _check(self, elbo: float) -> float:
        if not math.isfinite(elbo):
            advice = "a lower learning rate (lr.max) or a larger model.sigma2 at the start may help"
            if self.points.is_sampled:
                advice += ", or are there NaN among the data?"
            raise TrainingFailed(f"the ELBO became {elbo} in epoch {self.epoch + 1}; {advice}")
        return elbo

    def state_dict(self) -> dict[str, Any]:
        """All but the states. To be called on all ranks."""
        return {
            "model": self.model.parameters_by_name(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "totals": self.team.gather({name: value.cpu() for name, value in self.totals.sums.items()}),
            **self.model.spec(),
            "units": [self.units.mean, self.units.std],
        }

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Take over a `state_dict` that any number of ranks have written."""
        self.model.load(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.schedule.load_state_dict(dict(content["schedule"]))
        self.epoch, self.batch, self.seconds = content["epoch"], content["batch"], content["seconds"]
        if len(content["totals"]) == self.team.size:
            totals = [content["totals"][self.team.rank]]
        else:
            totals = content["totals"] if self.team.is_leader else []
        for name, value in self.totals.sums.items():
            value.copy_(sum((sums[name] for sums in totals), start=torch.zeros_like(value, device="cpu")))

    def sets_by_name(self) -> dict[str, Points]:
        """The data points whose states are saved beside the `state_dict`, by the names of these."""
        return (
            {"states": self.points} if self.held_out is None else {"test_states": self.held_out, "states": self.points}
        )


def make_schedule(
    optimiser: torch.optim.Optimizer, lr: LrConfig, n_batches: int, n_epochs: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The rate over the steps of `optimiser`, `n_batches` to each of `n_epochs`."""
    assert lr.max is not None
    if lr.kind == "cyclic":
        half = max(1, round((lr.epochs_per_cycle or n_epochs) * n_batches / 2))
        return torch.optim.lr_scheduler.CyclicLR(
            optimiser, base_lr=lr.min, max_lr=lr.max, step_size_up=half, cycle_momentum=False
        )
    if lr.kind == "decay":
        gamma = 0.5 ** (1 / (lr.epochs_to_half * n_batches))
        return torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma)
    return torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)


def next_rates(schedule: torch.optim.lr_scheduler.LRScheduler, n_steps: int) -> list[float]:
    """The rates of the next steps, which count as done from now on."""
    rates: list[float] = []
    for _ in range(n_steps):
        rates += map(float, schedule.get_last_lr())
        schedule.step()
    return rates


class Pace:
    """Adapts the number of minibatches per call to `MOMENT`; one, unless `is_free`. Results do not depend on it."""

    def __init__(self, is_free: bool):
        self.is_free, self.n_at_once = is_free, 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Time a call with `n_at_once` minibatches."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        if self.is_free and seconds < MOMENT / 2:
            self.n_at_once = min(2 * self.n_at_once, MOST_AT_ONCE)
        elif seconds > 2 * MOMENT:
            self.n_at_once = max(1, self.n_at_once // 2)
