"""The paper's first experiment (Appendix B): judge the runs of `make bars` and draw its figures.

    python -m scripts.judge_bars [outputs/bars/runs] [outputs/bars]

Of the finished runs on `bars` and on `bars_correlated` found below the first folder, the one with the highest ELBO is
taken, as in the paper. Written are, for each of the two: the decoder's output for the one-hot states over epochs, the
ELBO of all runs beside the log-likelihood of the generating parameters, data beside samples from the trained model, for
the correlated bars the generating parameters and the log-likelihood of pairs of bars, inferred against true; and
`bars.json` with the figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scripts.bars_figures import (
    draw_elbos,
    draw_fields_over_epochs,
    draw_pairs,
    draw_ratios,
    draw_samples,
    draw_truth,
)
from scripts.bars_runs import Run, load_runs, pair_likelihoods
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure


def judge(runs: list[Run]) -> tuple[Run, dict[str, Any]]:
    """The run with the highest ELBO, and what is to be said of it and of the others."""
    best = max(runs, key=lambda run: run.metrics["elbo"])
    found = best.metrics
    figures = {
        "runs": len(runs),
        "runs_with_all_bars": sum(bool((run.similarity > 0.95).all()) for run in runs),
        "best": best.directory.name,
        "elbo": found["elbo"],
        "log_likelihood_true": found["log_likelihood_true"],
        "sigma": found["sigma"],
        "sigma_true": found["sigma_true"],
        "cosine_min": best.similarity.min().item(),
        "epochs": found["epochs"],
        "seconds": found["seconds"],
    }
    if best.config.correlated:
        pairs = pair_likelihoods(best)
        forbidden, allowed = pairs.inferred[: pairs.n_forbidden], pairs.inferred[pairs.n_forbidden :]
        figures["gap_allowed_forbidden"] = (allowed.min() - forbidden.max()).item()
    return best, figures


def as_markdown(summary: dict[str, dict[str, Any]]) -> str:
    names = [
        "",
        "runs with all bars",
        "best run's ELBO",
        "true log-likelihood",
        "sigma (true)",
        "epochs",
        "seconds a run",
    ]
    lines = [names, ["---"] * len(names)]
    for name, found in summary.items():
        lines.append([
            name.replace("_", ", "), f"{found['runs_with_all_bars']} of {found['runs']}", f"{found['elbo']:.2f}",
            f"{found['log_likelihood_true']:.2f}", f"{found['sigma']:.4f} ({found['sigma_true']:g})",
            f"{found['epochs']}", f"{found['seconds']:.0f}",
        ])  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(source: str = "outputs/bars/runs", target: str = "outputs/bars") -> None:
    runs = load_runs(Path(source))
    if not runs:
        sys.exit(f"{source}: no finished runs on bars there; `make bars` makes them")
    out = Path(target)
    out.mkdir(parents=True, exist_ok=True)
    summary = {}
    for name, correlated in (("bars", False), ("bars_correlated", True)):
        chosen = [run for run in runs if run.config.correlated == correlated]
        if not chosen:
            continue
        best, figures = judge(chosen)
        summary[name] = figures
        save_figure(out / f"{name}_fields.png", draw_fields_over_epochs(best))
        save_figure(out / f"{name}_elbo.png", draw_elbos(chosen, best))
        save_figure(out / f"{name}_samples.png", draw_samples(best))
        if correlated:
            save_figure(out / f"{name}_pairs.png", draw_pairs(best))
            save_figure(out / f"{name}_ratios.png", draw_ratios(best))
            save_figure(out / f"{name}_truth.png", draw_truth(best.config))
        print(
            f"{name}: {figures['runs_with_all_bars']} of {figures['runs']} runs found all bars; best: {figures['best']}"
        )
        print(f"  ELBO {figures['elbo']:.3f}, log-likelihood of the truth {figures['log_likelihood_true']:.3f}")
        print(
            f"  sigma {figures['sigma']:.4f}, true {figures['sigma_true']:.4f}; cosine >= {figures['cosine_min']:.4f}"
        )
        if correlated:
            print(
                f"  forbidden pairs are {figures['gap_allowed_forbidden']:.1f} nats below the least likely allowed one"
            )
    write_atomically(out / "bars.json", (json.dumps(summary, indent=2) + "\n").encode())
    write_atomically(out / "bars.md", as_markdown(summary).encode())
    print(f"figures: {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
