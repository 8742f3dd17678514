"""Evolution beside an encoder network, with the same decoder, prior, likelihood and data (`make amortised`).

    python -m scripts.paper.amortised [TASK ...] [--seconds S] [--seeds 0 1 2] [--out outputs/amortised]

The paper argues for states without an encoder and does not compare. Here an encoder of two hidden layers gives the
logits of q(z | x) = prod_h Bern(z_h; sigmoid(l_h(x))), and encoder and decoder climb the same bound by Adam,

    ELBO = E_q[log p(x | z)] - KL(q(z | x) || p(z)),

the second term in closed form, the gradient of the first one in l by K samples and one of three estimators:

    straight-through   states forward, a relaxed Bernoulli's gradient backward (Jang et al. 2017, Maddison et al. 2017)
    RLOO               REINFORCE, the mean of the other samples as baseline (Kool et al. 2019)
    DisARM             antithetic pairs of samples (Dong et al. 2020)

pi and sigma2 are set once an epoch in closed form, Eq. (5), with this q in the place of the truncated one. All train by
turns, an epoch each, until each has had the same seconds of one core. The encoders' rate and their start of sigma2
(that of evolution, or the data's variance) are the best of a grid on another seed; evolution has the options of its
experiment.

Of each decoder, whatever it was trained by, the truncated bound is found by the same E-steps from the same states: it
tells the decoder from the gap that its own q leaves. On bars the exact log-likelihood stands beside it. Written to the
folder: a JSON file for each task and seed (those that are there are left alone), amortised.md and amortised.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from torch import Tensor, nn

from tvae.config.checks import resolve
from tvae.config.recipe import prepare
from tvae.config.schema import Config, conf_dir, register
from tvae.data.dataset import Dataset
from tvae.data.patches import AVERAGES
from tvae.data.sets.image import ImageConfig
from tvae.errors import TrainingFailed
from tvae.inference.posterior import significant_states
from tvae.inference.states import all_states
from tvae.inference.streams import derive, generator
from tvae.io.atomic import write_atomically
from tvae.model.likelihood import Gaussian
from tvae.model.packed import unpack
from tvae.model.prior import PI_MIN
from tvae.model.vae import Model, log_likelihood
from tvae.restoration.aggregation import Accumulator
from tvae.restoration.metrics import quality
from tvae.restoration.posterior_mean import Plan, Restored, restore
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.machine import machine
from tvae.runs.setup import make_fit
from tvae.training.trainer import Fit

N_SAMPLES = 8  # of q in a step; even, for pairs
N_EVALUATED = 100  # samples of q for the final bound, and for the posterior mean
BATCH = 100  # data points in a step of the encoders
TEMPERATURE = 2 / 3  # of the relaxed Bernoulli, as in Maddison et al.
HIDDEN = 200  # units in each of the encoder's two hidden layers
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
N_ROUNDS = 100  # of E-steps for the truncated bound, at most
PATIENCE = 10  # rounds
TOLERANCE = 0.02  # nats per data point: a rise in so many rounds that ends the search for it
CHOOSING_SEED = 100
LONG = 100_000  # epochs: the seconds are over before


class Task(NamedTuple):
    title: str
    words: tuple[str, ...]  # as on the command line; the seed is added
    seconds: float  # of one core, for each method
    seconds_of_choice: float  # for each setting that is tried


CYCLE = "lr.epochs_per_cycle=10"  # of all epochs, of which there is no end here, it would take for ever
HOUSE = ("experiment=table1_quick", "dataset.train_stride=2", CYCLE, "seed=${corruption_seed}")
NATURAL = ("dataset=natural", "n_patches=10000", "model.n_latents=100", "lr.max=0.002", CYCLE)
TASKS = {
    "bars": Task("bars", ("experiment=bars", "n_starts=1"), 10, 3),
    "house_25": Task("house, sigma=25", (*HOUSE, "noise=25"), 40, 6),
    "house_50": Task("house, sigma=50", (*HOUSE, "noise=50"), 40, 6),
    "natural": Task("natural patches", NATURAL, 40, 6),
}


class Drawn(NamedTuple):
    """Samples of q, and a number for each data point whose gradient estimates that of E_q[log p(x | z)]."""

    z: Tensor  # (B, K, H)
    value: Tensor  # (B, K): log p(x | z)
    target: Tensor  # (B,)


LogLikelihood = Callable[[Tensor], Tensor]  # (B, K, H) -> (B, K), with gradients
Estimator = Callable[[Tensor, LogLikelihood, int, torch.Generator], Drawn]


def _uniform(logits: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """(B, n, H)"""
    return torch.rand(len(logits), n, logits.shape[1], generator=rng, dtype=logits.dtype)


def straight_through(logits: Tensor, f: LogLikelihood, n_samples: int, rng: torch.Generator) -> Drawn:
    """Biased: states on the way forward, the relaxed Bernoulli's gradient on the way back."""
    u = _uniform(logits, n_samples, rng).clamp(1e-6, 1 - 1e-6)
    soft = torch.sigmoid((logits[:, None] + torch.logit(u)) / TEMPERATURE)
    z = (soft > 0.5).to(soft.dtype) + (soft - soft.detach())
    value = f(z)
    return Drawn(z.detach(), value, value.mean(1))


def rloo(logits: Tensor, f: LogLikelihood, n_samples: int, rng: torch.Generator) -> Drawn:
    """grad = 1/K sum_k (f_k - mean of the other f) grad log q(z_k)."""
    z = (_uniform(logits, n_samples, rng) < torch.sigmoid(logits)[:, None]).to(logits.dtype)
    value = f(z)
    known = value.detach()
    advantage = (known - known.mean(1, keepdim=True)) * n_samples / (n_samples - 1)
    log_q = (z * logits[:, None] - F.softplus(logits)[:, None]).sum(-1)
    return Drawn(z, value, (value + advantage * log_q).mean(1))


def disarm(logits: Tensor, f: LogLikelihood, n_samples: int, rng: torch.Generator) -> Drawn:
    """DisARM, for pairs made of u and 1 - u: grad_h = 1/2 (f(z) - f(z')) (z_h - z'_h) sigmoid(|l_h|)."""
    u, on = _uniform(logits, n_samples // 2, rng), torch.sigmoid(logits)[:, None]
    z, other = (u < on).to(logits.dtype), (1 - u < on).to(logits.dtype)
    value = f(torch.cat([z, other], 1))
    first, second = value.detach().chunk(2, 1)
    gradient = 0.5 * (first - second)[..., None] * (z - other) * torch.sigmoid(logits.detach().abs())[:, None]
    return Drawn(torch.cat([z, other], 1), value, value.mean(1) + (gradient * logits[:, None]).sum(-1).mean(1))


ESTIMATORS: dict[str, Estimator] = {"straight-through": straight_through, "RLOO": rloo, "DisARM": disarm}
METHODS = ("evolution", *ESTIMATORS)


def kl(logits: Tensor, pi: Tensor) -> Tensor:
    """(B,): sum_h KL(Bern(sigmoid(l_h)) || Bern(pi_h))."""
    on = torch.sigmoid(logits)
    when_on = F.logsigmoid(logits) - pi.log()
    when_off = F.logsigmoid(-logits) - torch.log1p(-pi)
    return (on * when_on + (1 - on) * when_off).sum(-1)


class Encoder(nn.Module):
    """x (B, D) -> logits of q (B, H); before training q is nearly the prior."""

    def __init__(self, n_values: int, pi: Tensor, rng: torch.Generator):
        super().__init__()
        sizes = [n_values, HIDDEN, HIDDEN, len(pi)]
        self.weights = nn.ParameterList(
            nn.init.xavier_normal_(torch.empty(n_out, n_in), generator=rng) for n_in, n_out in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList([torch.zeros(HIDDEN), torch.zeros(HIDDEN), torch.logit(pi).float()])

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in zip(list(self.weights)[:-1], list(self.biases)[:-1], strict=True):
            x = F.relu(F.linear(x, weight, bias))
        return F.linear(x, self.weights[-1], self.biases[-1])


@dataclass
class Training:
    """A method at work: its bound over the seconds of one core that it has had."""

    fit: Fit  # for evolution with its states, else for the decoder and the data alone
    seconds: float = 0.0
    history: list[tuple[float, float]] = field(default_factory=list)  # seconds, ELBO in nats in the data's units

    def epoch(self) -> float:
        """Train for an epoch; returns the bound, averaged over it."""
        return next(self.epochs)

    def __post_init__(self) -> None:
        self.epochs: Iterator[float] = (epoch.elbo for epoch in self.fit.epochs())

    def advance(self) -> None:
        started = time.process_time()
        elbo = self.epoch()
        self.seconds += time.process_time() - started
        self.history.append((self.seconds, elbo))


class Amortised(Training):
    def __init__(self, fit: Fit, estimator: Estimator, rate: float, seed: int, sigma2: float | None = None):
        """`sigma2`: to start from, as the model sees the data; None: as evolution does."""
        super().__init__(fit)
        assert isinstance(fit.model.likelihood, Gaussian)
        self.likelihood, self.estimator = fit.model.likelihood, estimator
        if sigma2 is not None:
            self.likelihood.sigma2.fill_(sigma2)
        self.encoder = Encoder(fit.points.n_values, fit.model.pi, generator(seed, "encoder"))
        self.rng = generator(seed, "samples of q")
        self.optimiser = torch.optim.Adam([*self.encoder.parameters(), *fit.model.decoder.parameters()], lr=rate)

    def log_likelihood_of(self, x: Tensor) -> LogLikelihood:
        """log p(x | z) for states (B, K, H), differentiable in states and decoder."""
        sigma2, n_values = self.likelihood.sigma2, x.shape[1]
        constant = 0.5 * n_values * math.log(2 * math.pi * float(sigma2))
        return lambda z: -(x[:, None] - self.fit.model.decoder(z)).square().sum(-1) / (2 * sigma2) - constant

    def epoch(self) -> float:
        fit, points = self.fit, self.fit.points
        total, active, error = 0.0, torch.zeros(fit.model.n_latents, dtype=torch.float64), 0.0
        for index in torch.randperm(points.n_points, generator=self.rng).split(BATCH):
            x, _ = points.rows(index)
            logits = self.encoder(x)
            drawn = self.estimator(logits, self.log_likelihood_of(x), N_SAMPLES, self.rng)
            penalty = kl(logits, fit.model.pi)
            loss = -(drawn.target - penalty).mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            with torch.no_grad():
                value = drawn.value.mean(1)
                constant = 0.5 * x.shape[1] * math.log(2 * math.pi * float(self.likelihood.sigma2))
                total += float((value - penalty).sum())
                active += torch.sigmoid(logits).sum(0)
                error += float(-(value + constant).sum() * 2 * self.likelihood.sigma2)
        if not math.isfinite(total):
            raise TrainingFailed("the encoder's ELBO is not finite")
        fit.model.pi.copy_((active / points.n_points).clamp(PI_MIN, 1 - PI_MIN))  # Eq. (5)
        self.likelihood.sigma2.fill_(error / (points.n_points * points.n_values))
        return fit.units.elbo_to_data(total / points.n_points, points.n_values)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, Tensor]:
        """Bound, latents on per data point, and the posterior mean (N, D) of every data point under q."""
        points, units = self.fit.points, self.fit.units
        rng, total, n_on, means = generator(0, "evaluation"), 0.0, 0.0, []
        for index in torch.arange(points.n_points).split(BATCH):
            x, _ = points.rows(index)
            logits, f = self.encoder(x), self.log_likelihood_of(x)
            on = torch.sigmoid(logits)
            z = (_uniform(logits, N_EVALUATED, rng) < on[:, None]).to(x.dtype)
            total += float((f(z).mean(1) - kl(logits, self.fit.model.pi)).sum())
            n_on += float(on.sum())
            means.append(self.fit.model.decoder(z).mean(1))
        n = points.n_points
        return units.elbo_to_data(total / n, points.n_values), n_on / n, torch.cat(means)


def setting(task: Task, seed: int) -> tuple[Config, Dataset]:
    """The checked configuration of a task, with nothing left open, and its data."""
    register()
    seeds = [f"corruption_seed={seed}"] if "seed=${corruption_seed}" in task.words else [f"seed={seed}"]
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        words = [*task.words, *seeds, f"epochs={LONG}", "threads=1", "device=cpu"]
        return prepare(resolve(compose("config", words)))


def encoders(config: Config, dataset: Dataset, chosen: dict[str, dict[str, Any]]) -> dict[str, Training]:
    """A training for each estimator with the rate and the start that were chosen."""
    return {
        name: Amortised(make_fit(config, dataset), ESTIMATORS[name], option["rate"], config.seed, option["sigma2"])
        for name, option in chosen.items()
    }


def choose(task: Task) -> dict[str, dict[str, Any]]:
    """The setting of the highest bound for each estimator, with all that were tried."""
    config, dataset = setting(task, CHOOSING_SEED)
    fit = make_fit(config, dataset)
    x, _ = fit.points.rows(torch.arange(min(fit.points.n_points, 10_000)))
    variance = float(x.var(correction=0))
    assert isinstance(fit.model.likelihood, Gaussian)
    is_far = abs(math.log(float(fit.model.likelihood.sigma2) / variance)) > 0.1
    found = {}
    for name in ESTIMATORS:
        tried = []
        for rate, sigma2 in itertools.product(RATES, (None, variance) if is_far else (None,)):
            training = encoders(config, dataset, {name: {"rate": rate, "sigma2": sigma2}})[name]
            elbo = -math.inf
            try:
                while training.seconds < task.seconds_of_choice:
                    training.advance()
                elbo = training.history[-1][1]
            except TrainingFailed as failure:
                print(f"{name}, rate {rate:g}: {failure}")
            tried.append({"rate": rate, "sigma2": sigma2, "elbo": elbo if math.isfinite(elbo) else None})
            print(f"{task.title}: {name}, rate {rate:g}, sigma2 {sigma2 or 'as evolution'}: {elbo:.2f}", flush=True)
        best = max(tried, key=lambda each: -math.inf if each["elbo"] is None else each["elbo"])
        found[name] = {**best, "tried": tried}
    return found


@torch.no_grad()
def truncated(config: Config, dataset: Dataset, model: Model) -> tuple[float, float, Fit]:
    """The bound by E-steps with these parameters, the latents on under that q, and the states."""
    fit = make_fit(config, dataset)
    fit.model.load(model.parameters_by_name())
    bounds: list[float] = []
    for i in range(N_ROUNDS):
        bounds.append(fit.search(fit.points, derive(config.seed, "truncated", i)))
        if i >= PATIENCE and bounds[-1] - bounds[-1 - PATIENCE] < TOLERANCE:
            break
    n_on = 0.0
    for index in torch.arange(fit.points.n_points).split(1000):
        x, observed = fit.points.rows(index)
        step = fit.backend.e_step(fit.model, config.ea, x, fit.points.sets.take(index), None, observed, index)
        rows = significant_states(step, 1e-3)
        n_on += float((unpack(rows.packed, fit.model.n_latents).sum(1) * rows.weight).sum())
    return bounds[-1], n_on / fit.points.n_points, fit


def psnr_of(means: Tensor, fit: Fit, config: Config, dataset: Dataset) -> float:
    """PSNR of the picture made of these patches (N, D)."""
    picture, options = dataset.picture, config.dataset
    assert picture is not None
    assert isinstance(options, ImageConfig)
    assert options.patch_size is not None
    assert options.train_stride is not None
    shape = picture.noisy.shape
    weights = AVERAGES[options.average](options.patch_size)
    sums = Accumulator(shape, options.patch_size, options.train_stride, weights, range(shape[0]))
    sums.add(torch.arange(len(means)), means, torch.zeros_like(means))
    pixels, uncertainty = sums.result()
    found = quality(picture, Restored(fit.units.to_data(pixels).numpy(), uncertainty.numpy()))["psnr"]
    assert found is not None
    return found


@torch.no_grad()
def judge(training: Training, config: Config, dataset: Dataset) -> dict[str, Any]:
    """The result of a training, with its decoder judged apart from its q."""
    model = training.fit.model
    found: dict[str, Any] = {"seconds": training.seconds, "epochs": len(training.history), "history": training.history}
    bound, n_on, fit = truncated(config, dataset, model)
    found |= {"truncated": bound, "n_on_truncated": n_on, "sigma": model.likelihood.sigma(fit.units)}
    if isinstance(training, Amortised):
        found["elbo"], found["n_on"], means = training.evaluate()
    else:
        found["elbo"], found["n_on"] = training.fit.bound(), float(model.pi.sum())
    if dataset.truth is not None:
        x, _ = fit.points.rows(torch.arange(fit.points.n_points))
        z = all_states(model.n_latents).to(x.dtype)
        found["log_likelihood"] = float(log_likelihood(model, x, z).mean())
        found |= dataset.facts(config)
    picture, options = dataset.picture, config.dataset
    if picture is not None and isinstance(options, ImageConfig):
        assert options.patch_size is not None
        assert options.train_stride is not None
        plan = Plan(options.patch_size, options.train_stride, options.train_stride, options.average, 0)
        found["psnr_truncated"] = quality(picture, restore(fit, picture, plan))["psnr"]
        if isinstance(training, Amortised):
            found["psnr"] = psnr_of(means, fit, config, dataset)
        else:
            found["psnr"] = quality(picture, restore(training.fit, picture, plan))["psnr"]
    return found


def compare(task: Task, seed: int, chosen: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Train all methods by turns on one seed."""
    config, dataset = setting(task, seed)
    trainings = {"evolution": Training(make_fit(config, dataset)), **encoders(config, dataset, chosen)}
    while min(training.seconds for training in trainings.values()) < task.seconds:
        min(trainings.values(), key=lambda training: training.seconds).advance()
    found = {name: judge(training, config, dataset) for name, training in trainings.items()}
    return {"methods": found, "machine": machine()}


def draw(results: dict[str, list[dict[str, Any]]]) -> Figure:
    """A panel for each task: bound over seconds, a line for each seed; at the right the truncated bound."""
    figure = Figure(figsize=(5 * len(results), 4.4), layout="constrained")
    for axes, (name, runs) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        ends, end = [], max(run["methods"][method]["seconds"] for run in runs for method in METHODS)
        for i, method in enumerate(METHODS):
            for j, run in enumerate(runs):
                found = run["methods"][method]
                seconds, elbos = zip(*found["history"], strict=True)
                axes.plot(seconds, elbos, f"C{i}", linewidth=1, label=method if j == 0 else None)
                axes.plot([1.06 * end], [found["truncated"]], f"C{i}_", markersize=10)
                late = [elbo for second, elbo in found["history"] if second > 0.1 * end]
                ends += [min(late), max(late), found["truncated"]]
        if "log_likelihood_true" in runs[0]["methods"]["evolution"]:
            true = runs[0]["methods"]["evolution"]["log_likelihood_true"]
            axes.axhline(true, color="k", linestyle=":", label="log-likelihood of the truth")
            ends.append(true)
        margin = 0.08 * (max(ends) - min(ends))
        axes.set_ylim(min(ends) - margin, max(ends) + margin)
        axes.set_title(TASKS[name].title)
        axes.set_xlabel("seconds of one core (marks: truncated bounds)")
        axes.set_ylabel("ELBO in nats per data point")
        axes.legend(fontsize="small", framealpha=0.9)
    return figure


COLUMNS = {
    "elbo": ("ELBO by its own q", 2),
    "truncated": ("truncated bound of its decoder", 2),
    "log_likelihood": ("exact log-likelihood", 2),
    "psnr": ("PSNR by its own q", 2),
    "psnr_truncated": ("PSNR by truncated q", 2),
    "n_on": ("latents on", 2),
    "n_on_truncated": ("latents on, truncated q", 2),
    "epochs": ("epochs", 0),
}


def spread(values: list[float], digits: int) -> str:
    words = f"{statistics.mean(values):.{digits}f}"
    return words if len(values) == 1 else f"{words} ± {statistics.stdev(values):.{digits}f}"


def as_markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """A table for each task, mean and standard deviation over seeds."""
    lines = []
    for name, runs in results.items():
        columns = [column for column in COLUMNS if column in runs[0]["methods"]["evolution"]]
        n, seconds = len(runs), TASKS[name].seconds if "budget" not in runs[0] else runs[0]["budget"]
        lines.append(
            [f"{TASKS[name].title}, {seconds:g} s of one core, {n} seed(s)", *(COLUMNS[c][0] for c in columns)]
        )
        lines.append(["---"] * (len(columns) + 1))
        for method in METHODS:
            cells = [spread([run["methods"][method][column] for run in runs], COLUMNS[column][1]) for column in columns]
            lines.append([method, *cells])
        lines.append([])
    return "".join(f"| {' | '.join(line)} |\n" if line else "\n" for line in lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.paper.amortised", description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--seconds", type=float, help="of one core for each method, instead of the task's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("outputs/amortised"))
    options = parser.parse_args(words)
    unknown = set(options.tasks) - set(TASKS)
    if unknown:
        parser.error(f"no such task: {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in options.tasks or TASKS:
        task = TASKS[name]._replace(**({} if options.seconds is None else {"seconds": options.seconds}))
        chosen_file = out / f"{name}_chosen.json"
        for seed in options.seeds:
            path = out / f"{name}_seed_{seed}.json"
            if path.is_file():
                continue
            if not chosen_file.is_file():
                write_atomically(chosen_file, (json.dumps(choose(task), indent=2) + "\n").encode())
            found = compare(task, seed, json.loads(chosen_file.read_text())) | {"budget": task.seconds}
            write_atomically(path, (json.dumps(found) + "\n").encode())
            for method in METHODS:
                each = found["methods"][method]
                print(
                    f"{name}, seed {seed}: {method}: ELBO {each['elbo']:.2f}, truncated {each['truncated']:.2f}",
                    flush=True,
                )
    results = {name: [json.loads(p.read_text()) for p in sorted(out.glob(f"{name}_seed_*.json"))] for name in TASKS}
    results = {name: runs for name, runs in results.items() if runs}
    write_atomically(out / "amortised.md", as_markdown(results).encode())
    save_figure(out / "amortised.png", draw(results))
    print(as_markdown(results) + f"written to {out}")


if __name__ == "__main__":
    main()
