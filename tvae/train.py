"""`python -m tvae.train`: train a model on a data set; where the data are patches of an image, restore it as well."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tvae import app, checkpoint, datasets
from tvae.atomic import DiskFull
from tvae.checked import understood
from tvae.checkpoint import Saved
from tvae.config import Config, ImageConfig, conf_dir, refuse
from tvae.datasets import Dataset
from tvae.fit import Epoch, Fit, make_fit
from tvae.images import to_png
from tvae.inference import e_step
from tvae.initialise import check_source, start_from_run
from tvae.model import log_likelihood
from tvae.points import STATES
from tvae.ranks import LostRank, Ranks, join
from tvae.recipe import complete
from tvae.report import Report, Unwritten, restore_to
from tvae.restore import quality, restore, warn_of_blind_patches
from tvae.rundir import RunDirectory, check_directory, check_ranks, read_metrics
from tvae.states import all_states
from tvae.stopping import GivenUp, Interrupted, queue_again, stop_on_signal
from tvae.streams import Stream

log = logging.getLogger("tvae.train")

MINUTES_TO_TELL = 20


def train(
    config: Config,
    path: Path,
    keep_observed: bool | None = None,
    give_up: Callable[[Epoch], bool] = lambda epoch: False,
) -> dict[str, Any]:
    """Train in the run directory `path`, going on where an earlier run stopped; returns what metrics.json holds.

    `keep_observed`: of an incomplete image, restore only the missing pixels; None: unless noise was added.
    `give_up`: asked after every epoch, and ends the run like an interruption.
    """
    if keep_observed is None:
        keep_observed = config.noise is None
    ranks = join()
    ranks.together(lambda: refuse(config.run is not None, f"run={config.run}: is for tvae.denoise and tvae.inpaint"))
    config = ranks.in_turn(lambda: complete(config))
    dataset = ranks.in_turn(lambda: datasets.load(config))
    ranks.together(lambda: check_source(config, dataset, path))
    fingerprint = dataset.fingerprint()
    ranks.together(lambda: check_ranks(config, dataset, fingerprint, ranks))
    directory = ranks.lead(lambda: RunDirectory(path, config, fingerprint))
    try:
        check_directory(path, ranks)
        (done, *_) = ranks.gather(read_metrics(path))
        if done is not None and done.get("status") == "finished":
            log.info("%s is finished already; restart=true starts over", path)
            return done
        with app.log_to_file(path / "run.log") if ranks.is_leader else nullcontext():
            return _train(config, path, dataset, fingerprint, keep_observed, give_up, ranks)
    finally:
        if directory is not None:
            directory.release()


def _train(
    config: Config,
    path: Path,
    dataset: Dataset,
    fingerprint: str,
    keep_observed: bool,
    give_up: Callable[[Epoch], bool],
    ranks: Ranks,
) -> dict[str, Any]:
    fit = ranks.together(lambda: make_fit(config, dataset, path, ranks))
    history: list[dict[str, Any]] = []
    saved = checkpoint.load_newest(path, ranks)
    if saved is not None:
        history = ranks.together(lambda: go_on(fit, saved))
        ranks.lead(lambda: checkpoint.reinstate(saved))
        log.info("%s: going on after epoch %d", path, fit.epoch)
    elif config.init_from is not None:
        start_from_run(fit, Path(config.init_from), fingerprint)
    report = Report(path, fit, dataset, history) if ranks.is_leader else Unwritten(fit, history)
    report.facts |= known_facts(config, dataset)
    warn_of_blind_patches(fit)
    if ranks.is_leader:
        tell_time(fit)

    given_up, saved_at, place = False, time.monotonic(), (fit.epoch, fit.batch)

    def save() -> None:
        nonlocal saved_at, place
        checkpoint.save(path, {"fit": fit.state_dict(), "history": report.history}, fit.parts(), ranks)
        # which is what it is, should the process end before the next save
        ranks.lead(lambda: report.write("interrupted"))
        saved_at, place = time.monotonic(), (fit.epoch, fit.batch)

    def is_due() -> bool:
        """In the middle of an epoch, and not where the last one was made, however soon the next is wanted."""
        return 0 < config.checkpoint_seconds <= time.monotonic() - saved_at and place != (fit.epoch, fit.batch)

    is_quiet = None if ranks.is_leader else True  # None: where there is no terminal
    try:
        with (
            stop_on_signal() as stop,
            logging_redirect_tqdm([logging.getLogger("tvae")]),
            tqdm(initial=fit.epoch, total=config.epochs, unit="epoch", disable=is_quiet) as bar,
        ):
            is_over = False
            while not is_over:
                for epoch in fit.epochs(lambda: stop() or is_due()):
                    found = _restore_now_and_then(fit, dataset, report, keep_observed)
                    report.add_epoch(epoch, found)
                    _show(epoch, found, bar, config)
                    given_up = fit.epoch < fit.n_epochs and give_up(epoch)
                    if given_up or config.checkpoint_seconds == 0:
                        break
                save()
                is_over = given_up or fit.epoch == fit.n_epochs or ranks.any(stop())
            is_at_limit = ranks.any(stop.is_at_limit)
    except LostRank:
        with suppress(DiskFull, OSError):
            report.write("interrupted")
        raise
    except Exception:
        with suppress(DiskFull, OSError):
            report.write("failed")
        raise
    if given_up:
        raise GivenUp(f"given up after epoch {fit.epoch}")
    if fit.epoch < fit.n_epochs:
        if is_at_limit:
            queue_again(ranks)
        raise Interrupted(f"interrupted in epoch {fit.epoch + 1}; the same command goes on from there")
    if dataset.picture is not None:
        report.facts |= restore_to(path, fit, dataset, keep_observed)
    metrics = ranks.together(report.finish)
    if ranks.is_leader:
        for file in path.glob(STATES.format("*")):  # the checkpoint has them
            file.unlink()
    log.info("%s", _summary(metrics, path))
    return metrics


def go_on(fit: Fit, saved: Saved) -> list[dict[str, Any]]:
    """Take over what was saved; returns the reports of the epochs so far."""
    with understood(saved.path):
        fit.load_state_dict(saved.content["fit"], saved.parts)
        return list(saved.content["history"])


def tell_time(fit: Fit) -> None:
    """Say beforehand if training will take long: from the E-step of some batches, which changes nothing."""
    n_own = math.ceil(fit.config.batch_size / fit.ranks.size)
    index = torch.arange(min(len(fit.points.own), n_own), device=fit.device)
    x, observed = fit.points.rows(index)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        e_step(fit.model, fit.config.ea, x, fit.points.take_states(index), Stream(0, index), observed)
        times.append(time.perf_counter() - started)
    # The first ones have threads to start and caches to fill. The rest of a visit takes about as long as the E-step.
    minutes = 2 * min(times) * fit.n_batches * (fit.n_epochs - fit.epoch) / 60
    if minutes > MINUTES_TO_TELL:
        fewer = "a larger dataset.train_stride" if isinstance(fit.config.dataset, ImageConfig) else "fewer data points"
        log.warning(
            "%d data points, %d epochs: this takes about %.0f minutes on this machine; less with fewer epochs, "
            "%s or a smaller model.n_latents", fit.points.n_points, fit.n_epochs, minutes, fewer,
        )  # fmt: skip


def _restore_now_and_then(fit: Fit, dataset: Dataset, report: Report, keep_observed: bool) -> dict[str, float | None]:
    """Every `restore_every` epochs: how good the image is by now, and the image for TensorBoard."""
    if dataset.picture is None:
        return {}
    if fit.epoch % fit.config.restore_every:
        return {"psnr": None, "ssim": None}
    restored = restore(fit, dataset.picture, keep_observed, n_rounds=0)
    report.add_picture(to_png(restored.pixels, dataset.picture.image))
    found = quality(restored, dataset.picture)
    return {"psnr": found["psnr"], "ssim": found["ssim"]}


def _show(epoch: Epoch, found: dict[str, float | None], bar: tqdm, config: Config) -> None:
    in_db = "" if found.get("psnr") is None else f"{found['psnr']:.2f} dB"
    on_test = "" if epoch.elbo_test is None else f"{epoch.elbo_test:.3f}"
    shown = {"ELBO": f"{epoch.elbo:.3f}", "held-out": on_test, "sigma": f"{epoch.sigma:.4g}", "PSNR": in_db}
    shown = {name: value for name, value in shown.items() if value}
    bar.set_postfix(shown, refresh=False)
    bar.update()
    if bar.disable:
        values = "  ".join(f"{name} {value}" for name, value in shown.items())
        values += f"  new states {epoch.n_accepted:.2f}  {epoch.seconds:.2f} s"
        log.info("epoch %d/%d  %s", epoch.epoch, config.epochs, values)


def _summary(metrics: dict[str, Any], path: Path) -> str:
    words = [f"finished in {metrics['seconds']:.0f} s: ELBO {metrics['elbo']:.4f}, sigma {metrics['sigma']:.4g}"]
    if metrics["psnr"] is not None:
        before = "" if metrics["psnr_input"] is None else f" (input {metrics['psnr_input']:.2f} dB)"
        words.append(f"PSNR {metrics['psnr']:.2f} dB{before}, SSIM {metrics['ssim']:.4f}")
    words.append(f"results in {path}")
    return "; ".join(words)


@torch.no_grad()
def known_facts(config: Config, dataset: Dataset) -> dict[str, float]:
    """What is known of the truth, for comparison with ELBO and sigma."""
    if dataset.picture is not None and config.noise is not None:
        return {"sigma_true": config.noise * dataset.picture.image.peak / 255}
    if dataset.truth is None:
        return {}
    truth = dataset.truth
    z = all_states(truth.n_latents).to(truth.pi.dtype)
    exact = log_likelihood(truth, dataset.data, z, dataset.observed).mean().item()
    return {"log_likelihood_true": exact, "sigma_true": truth.sigma2.sqrt().item()}


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
def job(cfg: DictConfig) -> None:
    app.run(train, cfg)


def main() -> None:
    app.launch(job)


if __name__ == "__main__":
    main()
