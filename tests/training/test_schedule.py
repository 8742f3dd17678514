"""The learning rate over the steps of training."""

import torch

from tvae.training.trainer import LrConfig, make_schedule


def rates(lr, n_batches=10, n_epochs=4):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.Adam([parameter], lr=lr.start)
    schedule = make_schedule(optimiser, lr, n_batches, n_epochs)
    found = [optimiser.param_groups[0]["lr"]]
    for _ in range(n_batches * n_epochs):
        optimiser.step()
        schedule.step()
        found.append(optimiser.param_groups[0]["lr"])
    return torch.tensor(found, dtype=torch.float64)


def test_the_cyclic_rate_is_a_triangle():
    found = rates(LrConfig("cyclic", min=0.1, max=0.5, epochs_per_cycle=2))
    up = torch.linspace(0.1, 0.5, 11, dtype=torch.float64)
    cycle = torch.cat([up[:-1], up.flip(0)[:-1]])
    torch.testing.assert_close(found, torch.cat([cycle, cycle, up[:1]]))


def test_one_cycle_over_all_epochs():
    found = rates(LrConfig("cyclic", min=0.1, max=0.5, epochs_per_cycle=None))
    torch.testing.assert_close(found[[0, 20, 40]], torch.tensor([0.1, 0.5, 0.1], dtype=torch.float64))


def test_the_decaying_rate_halves_and_the_constant_one_stays():
    found = rates(LrConfig("decay", max=0.4, epochs_to_half=2))
    torch.testing.assert_close(found[[0, 20, 40]], torch.tensor([0.4, 0.2, 0.1], dtype=torch.float64))
    assert (rates(LrConfig("constant", max=0.4)) == 0.4).all()
