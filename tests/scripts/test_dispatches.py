"""How many operations a visit of the torch engine dispatches: few, and far fewer with graphs."""

from scripts.bench.dispatches import count_dispatches


def test_graphs_leave_a_visit_few_operations():
    small = {"patch": 4, "latents": 16, "hidden": [8], "states": 12, "ea": (4, 3, 2), "noise": 25, "lr": 0.01}
    found = count_dispatches(small)
    assert 3 * found["with graphs"] < found["one by one"]
    longer = count_dispatches({**small, "ea": (4, 3, 4)})
    assert longer["with graphs"] == found["with graphs"], "whatever is in a graph"
    assert longer["one by one"] > found["one by one"]
