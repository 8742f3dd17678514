"""The smoothest picture through known pixels: against least squares with a dense matrix."""

import pytest
import torch

from tvae.data.smoothness import REACH, laplacian, smoothest


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(height, width):
    """(H * W, H * W): the matrix of second differences, neighbour by neighbour."""
    matrix = torch.zeros(height * width, height * width, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            for other in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if 0 <= other[0] < height and 0 <= other[1] < width:
                    matrix[row * width + column, other[0] * width + other[1]] += 1
                    matrix[row * width + column, row * width + column] -= 1
    return matrix


def test_laplacian_is_the_dense_matrix():
    x = rand(5, 7, 2)
    for channel in range(2):
        wanted = dense(5, 7) @ x[..., channel].flatten()
        torch.testing.assert_close(laplacian(x)[..., channel].flatten(), wanted)


@pytest.mark.parametrize("shape", [(6, 7, 1), (5, 4, 3), (1, 9, 1)])
def test_missing_pixels_are_those_of_least_squares(shape):
    y, known = rand(*shape), rand(*shape, seed=1) < 0.6
    before = y.clone()
    found = smoothest(y, known, torch.full(shape, 0.5, dtype=torch.float64), n_steps=500)
    matrix = dense(*shape[:2])
    for channel in range(shape[2]):
        values, is_known = y[..., channel].flatten(), known[..., channel].flatten()
        wanted = values.clone()
        wanted[~is_known] = torch.linalg.lstsq(matrix[:, ~is_known], -matrix[:, is_known] @ values[is_known]).solution
        torch.testing.assert_close(found[..., channel].flatten(), wanted, atol=1e-4, rtol=0)
    assert torch.equal(found[known], y[known])
    assert torch.equal(y, before)


def test_small_gaps_are_closed_within_the_usual_steps():
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(30.0), indexing="ij")
    picture = torch.sin((rows + columns) / 9)[..., None]
    known = (rand(40, 30, 1) < 0.5).expand_as(picture)
    error = (smoothest(picture * known, known, torch.zeros_like(picture)) - picture)[~known]
    assert error.abs().mean() < 0.01


def test_the_inside_of_a_large_hole_stays_as_it_is():
    known = torch.ones(40, 40, 1, dtype=torch.bool)
    known[10:30, 10:30] = False
    start = rand(40, 40, 1)
    found = smoothest(torch.zeros_like(start), known, start)
    inside = torch.zeros_like(known)
    inside[10 + REACH : 30 - REACH, 10 + REACH : 30 - REACH] = True
    assert torch.equal(found[inside], start[inside])
    assert (found != start)[~known & ~inside].all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_known_or_none(share):
    y, known = rand(4, 5, 1), torch.full((4, 5, 1), share == 1)
    found = smoothest(y, known, torch.full_like(y, 0.3))
    torch.testing.assert_close(found, y if share else torch.full_like(y, 0.3))
