"""`python -m tvae.train`: train a model on a data set."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tvae import app, checkpoint, datasets
from tvae.config import Config, choose_device, choose_threads, conf_dir
from tvae.datasets import Dataset
from tvae.fit import Epoch, Fit
from tvae.initialise import start_from_run
from tvae.model import log_likelihood
from tvae.report import Report
from tvae.rundir import RunDirectory
from tvae.states import all_states

log = logging.getLogger("tvae.train")


def train(config: Config, path: Path) -> dict[str, Any]:
    """Train in the run directory `path`, going on where an earlier run stopped; returns what metrics.json holds."""
    dataset = datasets.load(config)
    directory = RunDirectory(path, config)
    try:
        done = directory.metrics()
        if done is not None and done.get("status") == "finished":
            log.info("%s is finished already; restart=true starts over", path)
            return done
        with app.log_to_file(path / "run.log"):
            return _train(config, path, dataset)
    finally:
        directory.release()


def _train(config: Config, path: Path, dataset: Dataset) -> dict[str, Any]:
    torch.set_num_threads(choose_threads(config, dataset.data.shape[1]))
    fit = Fit(config, dataset, choose_device(config))
    history: list[dict[str, Any]] = []
    saved = checkpoint.load_newest(path)
    if saved is not None:
        fit.load_state_dict(saved["fit"])
        history = saved["history"]
        log.info("%s: going on after epoch %d", path, fit.epoch)
    elif config.init_from is not None:
        start_from_run(fit, Path(config.init_from))
    report = Report(path, fit, dataset.shape, history)
    report.facts = known_facts(dataset)

    def save() -> float:
        checkpoint.save(path, {"fit": fit.state_dict(), "history": report.history})
        report.write("interrupted")  # which is what it is, should the process end before the next save
        return time.monotonic()

    try:
        with app.stop_on_signal() as stop, logging_redirect_tqdm([logging.getLogger("tvae")]):
            saved_at = time.monotonic()
            with tqdm(initial=fit.epoch, total=config.epochs, unit="epoch", disable=None) as bar:
                for epoch in fit.epochs(stop):
                    report.add_epoch(epoch)
                    _show(epoch, bar, config.epochs)
                    due = time.monotonic() - saved_at >= config.checkpoint_seconds
                    if due and epoch.epoch < config.epochs:
                        saved_at = save()
            save()
    except BaseException:
        report.write("failed")
        raise
    if fit.epoch < config.epochs:
        raise app.Interrupted(f"interrupted in epoch {fit.epoch + 1}; the same command goes on from there")
    metrics = report.finish()
    log.info("finished: ELBO %.4f, sigma %.4g; results in %s", metrics["elbo"], metrics["sigma"], path)
    return metrics


def _show(epoch: Epoch, bar: tqdm, n_epochs: int) -> None:
    bar.set_postfix({"ELBO": f"{epoch.elbo:.3f}", "sigma": f"{epoch.sigma:.4g}"}, refresh=False)
    bar.update()
    if bar.disable:
        log.info(
            "epoch %d/%d  ELBO %.4f  sigma %.4g  new states %.2f  %.2f s",
            epoch.epoch, n_epochs, epoch.elbo, epoch.sigma, epoch.n_accepted, epoch.seconds,
        )  # fmt: skip


@torch.no_grad()
def known_facts(dataset: Dataset) -> dict[str, float]:
    """What the generating parameters, where known, would reach: for comparison with ELBO and sigma."""
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
