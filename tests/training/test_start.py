"""The slab model before training."""

import torch

from tvae.training.start import first_combinations, k_means, smoothed, smoothing


def test_means_of_well_separated_clusters_are_found():
    rng = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    x = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=rng)
    found = k_means(x, 3, torch.Generator().manual_seed(3))
    assert torch.cdist(centres, found).amin(1).max() < 0.1


def test_more_means_than_points():
    assert k_means(torch.randn(2, 3), 5, torch.Generator().manual_seed(0)).shape == (5, 3)


def test_smoothing_keeps_constants_and_channels_apart():
    blur = smoothing((4, 4, 2))
    x = torch.tensor([1.0, 5.0], dtype=torch.float64).repeat(16)
    torch.testing.assert_close(blur @ x, x)
    spike = torch.zeros(4, 4, 2, dtype=torch.float64)
    spike[1, 1, 0] = 1
    found = (blur @ spike.flatten()).view(4, 4, 2)
    assert found[1, 1, 0] > found[1, 2, 0] > found[1, 3, 0] > 0
    assert not found[..., 1].any()
    torch.testing.assert_close(smoothing((6,)), torch.eye(6))


def test_missing_values_do_not_count():
    blur = smoothing((3, 3, 1))
    observed = torch.ones(1, 9, dtype=torch.bool)
    observed[0, 4] = False
    x = torch.full((1, 9), 7.0, dtype=torch.float64) * observed
    torch.testing.assert_close(smoothed((x, observed), blur), torch.full((1, 9), 7.0, dtype=torch.float64))


def test_states_at_the_start_are_distinct():
    """Also where there are more than latents, up to all of them."""
    assert first_combinations(200, 3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    for n_states in range(1, 9):
        found = first_combinations(3, n_states)
        assert len({*map(tuple, found.tolist())}) == n_states
        assert found.sum(1)[: min(n_states, 3)].eq(1).all()
