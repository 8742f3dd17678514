"""Operations that a visit of the torch backend dispatches."""

from scripts.bench.dispatches import count_dispatches


def test_a_visit_is_some_hundred_operations_and_more_with_more_generations():
    small = {"patch": 4, "latents": 16, "hidden": [8], "states": 12, "ea": (4, 3, 2), "noise": 25, "lr": 0.01}
    found = count_dispatches(small)
    assert 100 < found < 400
    assert found < count_dispatches({**small, "ea": (4, 3, 4)}) < 2 * found
