"""The figure shows what the choice found."""

import numpy as np
import pytest
from made_up_noise import NOISY, scene

from tvae.data.picture import Picture
from tvae.io.image_file import from_array
from tvae.noise.choice import judge
from tvae.runs.callbacks.figures import draw_noise_model


@pytest.mark.parametrize("name", ["poisson 30", "correlated"])
def test_points_line_and_lags(name):
    image = from_array(NOISY[name](scene())[..., 0])
    model, _ = judge(Picture(image, image.pixels), "auto")
    left, right, last = draw_noise_model(model).axes
    points, line = left.get_lines()
    np.testing.assert_array_equal(points.get_xydata(), np.stack([model.line.mean, model.line.variance], 1))
    slope = np.diff(line.get_ydata()) / np.diff(line.get_xdata())
    assert slope == pytest.approx(model.line.gain)
    across, down = right.get_lines()[:2]
    assert (across.get_ydata()[1] + down.get_ydata()[1]) / 2 == pytest.approx(model.covariance.lag(1))
    assert model.kind.replace("_", "-") in right.get_title()
    white = model.bounds["white"]
    assert [bar.get_width() for bar in last.patches] == [nats - white for nats in model.bounds.values()]
