"""The paper's tables, from made-up runs."""

import csv
import json
import math

import pytest

from scripts.paper import tables
from scripts.paper.record import VARIANTS
from scripts.paper.tables import Row, collect
from tests.made_up_runs import make_outputs, make_run


@pytest.fixture
def outputs(tmp_path):
    make_outputs(tmp_path)
    return tmp_path


def rows_of(text):
    lines = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells] for cells in lines[2:]}


def test_means_spread_number_and_difference(outputs, capsys):
    tables.main(["table1", str(outputs)])
    rows = rows_of((outputs / "tables" / "table1.md").read_text())
    ours = rows["tvae, quick"]
    assert ours[1:4] == ["34.20 ± 0.20 (3)", f"32.50 ± {math.sqrt(0.5):.2f} (2)", ""]  # what failed does not count
    assert ours[4] == "-0.07 / -0.15 / -"  # the paper has 34.27 and 32.65
    assert ours[5] == "1.0 to 3.0"
    assert ours[-2:] == ["measured", "40 epochs, 1 thread(s) a run"]
    assert rows["tvae, the paper's parameters"][1] == "35.00 (1)"
    assert "500 epochs, 1 thread(s) a run" in rows["tvae, the paper's parameters"]
    assert rows["wavelets"][1] == "30.50 ± 0.71 (2)"
    assert rows["wavelets"][4] == ""  # nobody has published that
    assert rows["TVAE (paper)"][1:5] == ["34.27 ± 0.02", "32.65 ± 0.06", "29.61 ± 0.02", ""]
    assert "written to" in capsys.readouterr().out


def test_a_difference_is_to_the_same_system_as_published(outputs):
    make_run(outputs / "table1" / "linear" / "noise=15,seed=0", 32.0)
    make_run(outputs / "table1" / "slab" / "noise=15,seed=0", 32.8)
    differences = {}
    for name in ("table1", "table2"):
        for line in csv.DictReader(tables.as_csv(*collect(name, outputs)).splitlines()):
            if line["difference"]:
                differences[name, line["name"], line["column"]] = line["difference"]
    assert differences == {
        ("table1", "tvae, quick", "noise=15"): "-0.07",
        ("table1", "tvae, quick", "noise=25"): "-0.15",
        ("table1", "tvae, the paper's parameters", "noise=15"): "+0.73",
        ("table1", "var-BSC (our linear decoder)", "noise=15"): "-0.25",
        ("table1", "spike-and-slab, ours (linear, one direction a latent, global prior)", "noise=15"): "+0.12",
        ("table2", "tvae, the paper's parameters", "noise=15"): "+0.73",
        ("table2", "BM3D", "noise=15"): "+0.06",
    }


def test_recorded_runs_have_rows_of_their_own(outputs, recorded_folder):
    for name, psnr in (("table1_noise_15_seed_0", 34.1), ("table2_noise_50_seed_0", 29.7), ("notes", 1.0)):
        make_run(recorded_folder / name, psnr, epochs=500, seconds=7200)
    make_run(recorded_folder / "table2_noise_50_seed_0_fitness", 29.9, epochs=500, seconds=3600)
    make_run(recorded_folder / "inpainting_house_0.5_seed_0", 38.4, epochs=500, seconds=3600)
    title = "tvae, the paper's parameters"
    for table, expected in {
        "table1": {title: [[34.1], [], []]},
        "table2": {title: [[34.1], [], [29.7]], f"{title}, {VARIANTS['fitness'].title}": [[], [], [29.9]]},
        "inpainting": {title: [[38.4], [], []]},
    }.items():
        rows = [row for row in collect(table, outputs)[1] if row.origin == "recorded"]
        assert {row.name: row.cells for row in rows} == expected
    (row,) = (row for row in collect("table1", outputs)[1] if row.origin == "recorded")
    assert row.note == "500 epochs at revision 0.1.0 (1234567)"
    assert "34.1000,,1,-0.17,120.00" in tables.as_csv(*collect("table1", outputs))


@pytest.mark.parametrize("name", ["metrics.json", "config.yaml"])
def test_a_damaged_run_is_left_out_and_named(outputs, name, capsys):
    damaged = outputs / "table1" / "quick" / "noise=15.0,seed=1" / name
    damaged.write_text(damaged.read_text()[:20] + "}")
    (outputs / "peers" / "noise=15,seed=0.json").write_text("{")
    _, rows = collect("table1", outputs)
    assert [row.cells[0] for row in rows[:1]] == [[34.0, 34.4]]
    said = capsys.readouterr().err
    assert f"left out: {damaged}" in said
    assert "noise=15,seed=0.json: cannot be read" in said


def test_nothing_cited_can_be_taken_for_measured(outputs):
    for name in ("table1", "table2", "table-n2v", "inpainting"):
        _, rows = collect(name, outputs)
        for row in rows:
            assert row.origin in ("measured", "cited")
            if row.origin == "cited":
                assert "Table" in row.note
                assert not any("(" in row.shown(c) for c in range(len(row.cells)))  # no number of runs
                assert not row.minutes
    for text in (tables.as_markdown(*collect("table1", outputs)), tables.as_latex(*collect("table1", outputs))):
        for line in text.splitlines():
            if "TVAE (paper)" in line or "MTMKL" in line:
                assert "cited" in line


def test_csv_has_a_line_for_every_cell(outputs):
    tables.main(["table1", str(outputs)])
    with open(outputs / "tables" / "table1.csv") as file:
        lines = list(csv.DictReader(file))
    (cell,) = (line for line in lines if line["name"] == "tvae, quick" and line["column"] == "noise=15")
    assert float(cell["psnr_mean"]) == pytest.approx(34.2)
    assert float(cell["psnr_std"]) == pytest.approx(0.2)
    assert (cell["n"], cell["minutes_mean"], cell["origin"]) == ("3", "2.00", "measured")


def test_minutes_are_of_the_whole_run(tmp_path):
    run = tmp_path / "table2" / "quick" / "noise=50,seed=0"
    make_run(run, 29.9, seconds=6.0)
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"seconds_total": 90.0}))
    assert collect("table2", tmp_path)[1][0].minutes == [[], [], [1.5]]


def test_latex_is_a_whole_table(outputs):
    text = tables.as_latex(*collect("table1", outputs))
    assert text.startswith(r"\begin{tabular}{lccccclll}")
    assert text.rstrip().endswith(r"\end{tabular}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {8}


def test_latex_takes_any_text():
    row = Row("a_b", "measured", "50 % & more", [[1.0], [], []], [[], [], []], "#1")
    assert r"a\_b & 1.00 (1) &  &  &  &  & 50 \% \& more & measured & \#1 \\" in tables.as_latex(
        {"columns": ["noise=15", "noise=25", "noise=50"]}, [row]
    )


def test_runs_of_table_2_fill_the_one_beside_noise2void(tmp_path):
    make_run(tmp_path / "table2" / "quick" / "noise=50,seed=0", 29.9)
    _, rows = collect("table-n2v", tmp_path)
    assert rows[0].cells == [[], [], [29.9]]


def test_table_2_takes_the_lower_levels_of_the_paper_from_table_1(tmp_path):
    for level in (15.0, 50.0):
        make_run(tmp_path / "table1" / "paper" / f"noise={level},seed=0", level)
    make_run(tmp_path / "table2" / "paper" / "noise=50.0,seed=0", 29.9)
    _, rows = collect("table2", tmp_path)
    assert rows[0].cells == [[15.0], [], [29.9]]


def test_inpainting_runs_find_their_column(tmp_path):
    make_run(tmp_path / "inpainting" / "quick" / "dataset=castle,missing=0.8,missing_per=channel,seed=0", 27.0)
    _, rows = collect("inpainting", tmp_path)
    assert rows[0].cells == [[], [], [27.0]]


def test_no_such_table(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        tables.main(["table9", str(tmp_path)])
    assert end.value.code == 2
    assert "choose from" in capsys.readouterr().err
