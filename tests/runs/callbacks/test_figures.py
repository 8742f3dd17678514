"""Figures of a run."""

import pytest

from tvae.runs.callbacks.figures import Results, draw_training, shown_range


def history(*elbos, elbo_test=None):
    return [{"elbo": elbo, "elbo_test": elbo_test} for elbo in elbos]


@pytest.mark.parametrize("n_epochs", [3, 5, 60, 500])
def test_the_first_epochs_do_not_flatten_the_curve(n_epochs):
    """Table 1 begins at -3e7 and goes on at -363."""
    found = history(-28_936_081.0, *(-363.0 + i * 40 / n_epochs for i in range(n_epochs - 1)))
    low, high = shown_range(found, ["elbo"])
    assert -370 < low < -325
    assert found[-1]["elbo"] < high < -315


def test_the_axis_holds_what_comes_later_held_out_data_and_the_truth():
    columns = ["elbo", "elbo_test"]
    assert shown_range(history(-5.0, 3.0, 1.0, 2.0), columns) == pytest.approx((0.8, 3.2))
    assert shown_range(history(-5.0, 3.0, 1.0, 2.0, elbo_test=-4.0), columns) == pytest.approx((-4.7, 3.7))
    assert shown_range(history(-5.0, 3.0, 1.0, 2.0), columns, [11.0]) == pytest.approx((0, 12))
    assert shown_range(history(-5.0), columns) == pytest.approx((-5.1, -4.9))
    assert shown_range(history(-5.0, 0.0, 0.0), columns) == pytest.approx((-0.1, 0.1))


def test_every_axis_of_the_training_shows_its_curve():
    """As at Table 1: first epochs far away, a PSNR now and then, a noisy image far below it."""
    rows = [
        {"epoch": i, "elbo": -3e7 if i == 1 else -350 + i / 100, "elbo_test": None, "sigma": 50 + 100 / i**2,
         "psnr": None if i % 20 else 29 - 20 / i}
        for i in range(1, 501)
    ]  # fmt: skip
    figure = draw_training(Results(None, None, rows, {"sigma_true": 50.0, "psnr_input": 14.2}))
    heights = {"ELBO in nats per data point": 8, "sigma": 2, "PSNR in dB": 2}
    assert [axes.get_title() for axes in figure.axes] == list(heights)
    for axes in figure.axes:
        low, high = axes.get_ylim()
        late = axes.lines[0].get_ydata()[-5:]
        assert all(low < value < high for value in late)
        assert high - low < heights[axes.get_title()]
    labels = figure.axes[2].get_legend().get_texts()
    assert [label.get_text() for label in labels] == ["restored", "noisy image, 14.20 dB"]
