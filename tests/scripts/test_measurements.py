"""Scripts that measure: what they make of measured times, and what is timed."""

import math
import resource
import sys
import time

import pytest
import torch

from scripts.bench import restoring, runtime, scaling, training, visits
from scripts.bench.training import Spread, busy_neighbour, by_turns, ratios
from tvae.inference.states import codes


def test_costs_are_those_of_the_line_through_the_steps():
    """2 ms for a data point, 5 ms for a step, 3 ms to meet."""
    rows = []
    for batch, n_points in ((32, 1000), (256, 4000)):
        most = batch / 2 + math.sqrt(batch * math.log(2))
        one, two = 0.002 * batch + 0.005, 0.002 * most + 0.005 + 0.003
        steps = n_points / batch
        rows.append({"decoder": "512-512-144", "batch": batch, "n_points": n_points, "one": [one * steps],
                     "two": [two * steps]})  # fmt: skip
    rows.append({"decoder": "64-64-64", "batch": 32, "n_points": 1000, "one": [1.0], "two": [1.0]})
    assert scaling.costs(rows) == pytest.approx((0.002, 0.005, 0.003))


def test_one_node_has_no_network_and_more_nodes_share_the_work():
    rows = {(row["patches"], row["nodes"]): row for row in scaling.calculate(1e-3, 5e-3, 2e-3)}
    alone, ten = rows[10**7, 1], rows[10**7, 10]
    assert alone["network_share"] == alone["gb_per_epoch_and_node"] == 0
    assert alone["ms_per_step"] == pytest.approx(1024 / (16 * 0.7) + 5)
    assert 5 < alone["hours_per_epoch"] / ten["hours_per_epoch"] < 10
    n_bytes = 4 * (512 * 512 + 512 + 512 * 144 + 144)
    network = 2 + 1.8 * n_bytes / 1.25e9 * 1e3 + 18 * 0.05
    assert ten["network_share"] * ten["ms_per_step"] == pytest.approx(network)
    steps = 10**7 / 10240
    assert ten["gb_per_epoch_and_node"] == pytest.approx(1.8 * n_bytes * steps / 1e9)
    assert rows[10**8, 10]["hours_per_epoch"] == pytest.approx(10 * ten["hours_per_epoch"])
    assert "| 10^8 | 100 |" in scaling.calculated_table(list(rows.values()))


def test_growth_of_the_time(monkeypatch, tmp_path):
    """Seconds that grow with the square root of what is varied; the values take turns, and the median counts."""
    asked = []

    def measure(setting, *_, **__):
        asked.append(setting)
        seconds = (setting["points"] * setting["latents"] * setting["states"] * setting["patch"] ** 2) ** 0.5
        return {"seconds_per_epoch": Spread.of([{1: 1, 2: 0.5, 3: 4}[asked.count(setting)] * seconds])}

    monkeypatch.setattr(runtime, "measure", measure)
    found = {}
    for name, (_, option, values) in runtime.SWEEPS.items():
        asked.clear()
        found[name] = runtime.sweep(name, 1000)
        assert [setting[option] for setting in asked] == 3 * values
        assert all(setting["hidden"] == [setting["latents"]] for setting in asked)
        assert found[name]["exponent"] == pytest.approx(0.5)
        assert found[name]["spread"] == [[0.5 * middle, 4 * middle] for middle in found[name]["seconds"]]
    assert found["D"]["values"] == [36, 64, 144, 256]
    assert runtime.table(found).count("0.50 | linear |") == 3
    assert "0.50 | less than linear |" in runtime.table(found)
    assert len(runtime.draw(found).axes) == 4


def test_the_papers_setting_beside_what_it_cites(monkeypatch):
    """Time doubles with the number of states; cited figures have a column of their own."""

    def measure(setting, n_visited, *_, **__):
        assert (setting["patch"], setting["latents"], setting["ea"], n_visited) == (12, 512, (5, 4, 1), 800)
        return {"seconds_per_epoch": Spread.of([setting["states"] / 16])}

    monkeypatch.setattr(runtime, "measure", measure)
    lines = runtime.papers_table(runtime.at_papers_setting(800)).splitlines()
    assert lines[2:] == [
        "| 64 states | 4.00 (4.00..4.00) | *49 s* |",
        "| 128 states | 8.00 (8.00..8.00) | *75 s* |",
        "| twice the states | 2.00 times the time | *1.53 times* |",
    ]


TINY = {"patch": 4, "latents": 8, "hidden": [8], "states": 16, "ea": (3, 2, 2), "noise": 25, "lr": 0.01, "points": 200}


@pytest.mark.parametrize("more", [{}, {"hidden": []}, {"memmap": True}], ids=str)
def test_what_is_measured(more):
    found = training.measure({**TINY, **more}, 64, 1, 2, with_others=True)
    assert (found["n_points"], found["n_visited"]) == (200, 64)
    for name in ("seconds_per_epoch", "one_thread", "neighbour", "dense"):
        assert 0 < found[name].low <= found[name].middle <= found[name].high
    assert {"rest"} < set(found["phases"]) <= {"minibatches", "E-step and gradient", "Adam", "rest"}
    assert sum(found["phases"].values()) == pytest.approx(1)
    assert found["states_per_second"] == pytest.approx((16 + 12) * 200 / found["seconds_per_epoch"].middle)
    assert found["gflops"] == pytest.approx(
        2e-9 * found["states_per_second"] * (128 if more.get("hidden") == [] else 192)
    )
    assert "| tiny | 200 (64) |" in training.table({"settings": {"tiny": found}})


def test_ratios_are_those_within_a_round():
    """The second round is ten times slower for both."""
    rounds = {"ours": iter([1.0, 10.0, 2.0]), "other": iter([3.0, 40.0, 2.0])}
    order = []
    turns = {name: lambda name=name: order.append(name) or next(rounds[name]) for name in rounds}
    times = by_turns(turns, 3)
    assert order == 3 * ["ours", "other"]
    assert ratios(times["other"], times["ours"]) == (3, 1, 4)
    assert Spread.of([3.0, 40.0, 2.0]).text() == "3.0 (2.0..40.0)"


def test_a_busy_neighbour_takes_time_and_is_gone_afterwards():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with busy_neighbour():
        time.sleep(0.2)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > before, "it has ended, so that its time counts"


def test_the_dense_visit_does_what_the_backend_does(tmp_path):
    """The same random numbers lead to the same states and, but for states of hardly any weight, the same step."""
    by_backend, dense = (visits.make_training(TINY, tmp_path) for _ in range(2))
    by_backend.config.prune = 0
    before = [parameter.clone() for parameter in dense.model.decoder.parameters()]
    (index, *_) = visits.batches(dense, 32)
    visits.backend_visit(by_backend)(index, 5)
    visits.dense_visit(dense)(index, 5)
    found = [codes(fit.points.sets.take(index), 8).sort(1).values for fit in (by_backend, dense)]
    assert torch.equal(*found)
    pairs = zip(by_backend.model.decoder.parameters(), dense.model.decoder.parameters(), before, strict=True)
    for mine, theirs, old in pairs:
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
        assert not torch.equal(mine, old)


def test_parts_of_a_visit_are_timed_and_left_as_they_were(tmp_path):
    fit = visits.make_training(TINY, tmp_path)
    backend, batches = fit.backend, visits.batches(fit, 64)
    visits.seconds_of(visits.backend_visit(fit), batches[:1], 0)
    with visits.phases(fit) as spent:
        whole = visits.seconds_of(visits.backend_visit(fit), batches, 0)
    assert 0 < sum(spent.values()) < whole
    assert fit.backend is backend
    spent.clear()
    visits.seconds_of(visits.backend_visit(fit), batches, 1)
    assert spent == {}


def test_restorations_take_turns_with_bm3d(monkeypatch, tmp_path, capsys):
    """Seconds made up: a call on two threads 2, on one 3, a command 5, BM3D 1, and all twice that beside others."""
    made = {"2 threads": 2.0, "1 thread": 3.0, "command": 5.0, restoring.BM3D: 1.0}

    def variants(noisy, efforts, folder):
        assert noisy.shape == (40, 40)
        found = {restoring.BM3D: lambda: made[restoring.BM3D]}
        for name in ("2 threads", "1 thread", "command"):
            found[f"{efforts[0]}, {name}"] = lambda name=name: made[name]
        return found | {f"{restoring.BUSY}{name}": lambda work=work: 2 * work() for name, work in found.items()}

    monkeypatch.setattr(restoring, "variants", variants)
    monkeypatch.setattr(restoring.tvae, "denoise", lambda noisy, effort: noisy)
    restoring.main(["--side", "40", "--efforts", "fast", "--out", str(tmp_path), "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert "| fast, 1 thread | 3.00 (3.00..3.00) | 3.0 (3.0..3.0) |  |" in lines
    assert "| beside busy processes: fast, command | 10.00 (10.00..10.00) | 5.0 (5.0..5.0) | 2.0 (2.0..2.0) |" in lines
    assert (tmp_path / "restoring.json").exists()


def test_what_is_timed_of_a_restoration(monkeypatch, tmp_path):
    monkeypatch.setattr(restoring, "n_cores", lambda: 2)
    monkeypatch.setattr(restoring, "bm3d", lambda noisy, sigma: noisy)
    called = []
    monkeypatch.setattr(restoring.tvae, "denoise", lambda noisy, **options: called.append(options))
    noisy = restoring.noisy_picture(256)
    assert noisy.std() > restoring.SIGMA
    found = restoring.variants(noisy, ["fast"], tmp_path)
    assert list(found)[:4] == ["BM3D", "fast, call, 1 thread", "fast, call, 2 threads", "fast, command"]
    assert [name for name in found if name.startswith(restoring.BUSY)] == [
        f"{restoring.BUSY}{name}" for name in ("BM3D", "fast, call, 1 thread", "fast, call, 2 threads", "fast, command")
    ]
    assert list(found)[-2:] == ["64x64, command, first line", "64x64, command"]
    told = restoring.table({"BM3D": [1.0], "64x64, command": [3.0]}).splitlines()
    assert told[-1] == "| 64x64, command | 3.00 (3.00..3.00) |  |  |"
    assert found["fast, call, 2 threads"]() >= 0
    assert found[f"{restoring.BUSY}fast, call, 1 thread"]() >= 0
    assert called == [{"effort": "fast", "threads": 2}, {"effort": "fast", "threads": 1}]


def test_the_first_line_comes_before_the_end(monkeypatch, tmp_path):
    code = "import sys, time; print('a line', file=sys.stderr, flush=True); time.sleep(0.5)"
    monkeypatch.setattr(restoring, "_words", lambda *_: [sys.executable, "-c", code])
    started = time.perf_counter()
    first = restoring._first_line(restoring.noisy_picture(8), tmp_path)
    assert 0 < first < time.perf_counter() - started - 0.4
