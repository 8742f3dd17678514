"""Figures of a run."""

import pytest

from tvae.runs.callbacks.figures import lowest_shown


def history(*elbos, elbo_test=None):
    return [{"elbo": elbo, "elbo_test": elbo_test} for elbo in elbos]


@pytest.mark.parametrize("n_epochs", [3, 5, 60, 500])
def test_the_first_epochs_do_not_flatten_the_curve(n_epochs):
    """Table 1 begins at -3e7 and goes on at -363."""
    found = history(-28_936_081.0, *(-363.0 + i * 40 / n_epochs for i in range(n_epochs - 1)))
    assert -370 < lowest_shown(found) < -325


def test_the_axis_holds_what_comes_later_and_held_out_data():
    assert lowest_shown(history(-5.0, 3.0, 1.0, 2.0)) == pytest.approx(0.8)
    assert lowest_shown(history(-5.0, 3.0, 1.0, 2.0, elbo_test=-4.0)) == pytest.approx(-4.7)
    assert lowest_shown(history(-5.0)) < -5
    assert lowest_shown(history(-5.0, 0.0, 0.0)) < 0
