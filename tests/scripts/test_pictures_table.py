"""The table of restorations of the development set, from made-up runs."""

import csv
import statistics
import sys
import types

import pytest
from skimage.restoration import inpaint_biharmonic

from scripts.paper import report
from scripts.pictures import table
from scripts.pictures.runs import NOT_INSTALLED, Case, arrays_of, collect_runs, measure_peers, read_measured
from tests.made_up_pictures import MISSING, MORE, NOISE, make_run, psnr_of, set_times, tables_of
from tvae.noise.level import estimate_noise
from tvae.restoration.metrics import psnr


def make_runs(folder):
    """Eight runs of both halves; returned: those of coffee, of page, and the inpainted one."""
    make_run(folder, "page", MORE, 1)
    make_run(folder, "house", NOISE, 0)
    make_run(folder, "coffee", NOISE, 0, "best")
    coffee = [make_run(folder, "coffee", NOISE, seed) for seed in (0, 1, 2)]
    return coffee, make_run(folder, "page", NOISE, 1, seconds=300.0), make_run(folder, "coffee", MISSING, 0)


def test_table(folder, bm3d, capsys):
    """Against means, deviations and differences that are computed here."""
    coffee, page, filled = make_runs(folder)
    table.main([str(folder.parent)])
    said = capsys.readouterr().out
    assert "Runs by tvae 0.1.0 (1234567): 8." in said
    assert "written to" in said

    theirs, blind = {}, {}
    for name, seed in (("coffee", 0), ("coffee", 1), ("coffee", 2), ("page", 1)):
        clean, noisy, _ = arrays_of(Case(name, NOISE, seed), folder / "clean")
        theirs[name, seed] = psnr(clean[..., 0], bm3d(noisy[..., 0], 25.0), 255.0)
        blind[name, seed] = psnr(clean[..., 0], bm3d(noisy[..., 0], estimate_noise(noisy, None)), 255.0)
    ours = [psnr_of(path) for path in coffee]
    gap = statistics.mean(mine - theirs["coffee", seed] for seed, mine in enumerate(ours))
    gap_of_page = psnr_of(page) - theirs["page", 1]

    noise, missing, calibration, *by_picture = tables_of((folder.parent / "tables" / "pictures.md").read_text())
    groups = ["half A (chosen on), effort=default", *["half B (reported), effort=default"] * 2,
              "half B (reported), effort=best"]  # fmt: skip
    assert [row[0] for row in noise[1:]] == groups
    reported = dict(zip(noise[0], noise[2], strict=True))
    assert [reported[name] for name in ("", "pictures", "runs", "threads")] == ["sigma 25", "2 of 8", "4", "1"]
    assert reported["ours"] == f"{(statistics.mean(ours) + psnr_of(page)) / 2:.2f}"
    assert reported["difference"] == f"{(gap + gap_of_page) / 2:+.2f}"
    worst = min((gap, "coffee"), (gap_of_page, "page"))
    assert reported["worst picture"] == f"{worst[1]} {worst[0]:+.2f}"
    assert reported["seconds"] == "100..300 *"

    assert (folder.parent / "tables" / "pictures.png").is_file()
    (first,) = (table for table in by_picture if table[0][0] == groups[1] and "sigma" in table[0][1])
    assert first[0][1:] == [*("sigma 25: ours", "BM3D, told", "BM3D, estimated", "difference"),
                            *("sigma 50: ours", "BM3D, told", "BM3D, estimated", "difference"), "seconds"]  # fmt: skip
    assert [row[0] for row in first[1:]] == ["coffee", "page"]
    assert first[1][1] == f"{statistics.mean(ours):.2f} ± {statistics.stdev(ours):.2f} (3)"
    of_coffee = [blind["coffee", seed] for seed in range(3)]
    assert first[1][3] == f"{statistics.mean(of_coffee):.2f} ± {statistics.stdev(of_coffee):.2f} (3)"
    assert first[1][4:] == [f"{gap:+.2f}", "", "", "", "", "100..100"]  # no run of coffee at 50
    assert first[2][1:5] == [f"{psnr_of(page):.2f} (1)", f"{theirs['page', 1]:.2f} (1)", f"{blind['page', 1]:.2f} (1)",
                             f"{gap_of_page:+.2f}"]  # fmt: skip

    clean, incomplete, dropped = arrays_of(Case("coffee", MISSING, 0), folder / "clean")
    smooth = psnr(clean[..., 0], 255 * inpaint_biharmonic(incomplete[..., 0] / 255, dropped), 255.0)
    assert missing[1][5:7] == [f"{smooth:.2f}", f"{psnr_of(filled) - smooth:+.2f}"]

    assert [row[:2] for row in calibration[1:]] == [
        [groups[0], "sigma 25"], [groups[1], "sigma 25"], [groups[1], "sigma 50"], [groups[1], "50% missing"],
        [groups[3], "sigma 25"],
    ]  # fmt: skip
    found = [run.calibration for run in collect_runs(folder) if run.case[:2] in (("coffee", NOISE), ("page", NOISE))
             if run.effort == "default"]  # fmt: skip
    lasts = [each.ratios[7] for each in found]
    shares = [100 * each.coverage for each in found]
    assert calibration[2][9:] == [f"{min(lasts):.2f}..{max(lasts):.2f}", f"{min(shares):.1f}..{max(shares):.1f} %"]


def test_csv_has_a_line_for_every_cell(folder, bm3d):
    coffee, *_ = make_runs(folder)
    table.main([str(folder.parent)])
    with open(folder.parent / "tables" / "pictures.csv") as file:
        lines = list(csv.DictReader(file))
    assert [(line["half"], line["effort"], line["picture"], line["corruption"], line["n"]) for line in lines] == [
        ("A", "default", "house", "noise=25", "1"),
        ("B", "default", "coffee", "noise=25", "3"),
        ("B", "default", "page", "noise=25", "1"),
        ("B", "default", "page", "noise=50", "1"),
        ("B", "default", "coffee", "missing=0.5", "1"),
        ("B", "best", "coffee", "noise=25", "1"),
    ]
    ours = statistics.mean(psnr_of(path) for path in coffee)
    assert float(lines[1]["psnr_mean"]) == pytest.approx(ours, abs=1e-4)
    assert float(lines[1]["difference"]) == pytest.approx(ours - float(lines[1]["BM3D, told"]), abs=2e-4)
    assert (lines[1]["biharmonic"], lines[4]["BM3D, told"]) == ("", "")
    assert (lines[1]["seconds_mean"], lines[1]["seconds_are"]) == ("100.0000", "whole")
    assert lines[2]["seconds_are"] == "training"
    ratios = [run.calibration.ratios[2] for run in collect_runs(folder) if run.case[:2] == ("coffee", NOISE)]
    assert float(lines[1]["ratio_3_max"]) == pytest.approx(max(ratios), abs=1e-4)


def test_other_systems_are_measured_once(folder, bm3d):
    make_run(folder, "coffee", NOISE, 0)
    make_run(folder, "coffee", NOISE, 0, "best")  # the same array
    table.main([str(folder.parent)])
    assert len(bm3d.calls) == 2  # told and estimated
    assert bm3d.calls[0] == 25.0
    make_run(folder, "page", NOISE, 0)
    table.main([str(folder.parent)])
    assert len(bm3d.calls) == 4
    cache = folder / "peers.csv"
    found = read_measured(cache)
    cache.write_text(cache.read_text().replace("coffee,noise,25.0,0,", "coffee,noise,,0,", 1))
    assert len(read_measured(cache)) == 3  # a damaged line
    table.main([str(folder.parent)])
    assert len(bm3d.calls) == 5
    assert {key: measured.psnr for key, measured in read_measured(cache).items()} == {
        key: measured.psnr for key, measured in found.items()
    }


def test_without_bm3d_its_columns_are_empty_until_it_is_there(folder, monkeypatch, request):
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "bm3d", None)
        make_run(folder, "coffee", NOISE, 0)
        table.main([str(folder.parent)])
    text = (folder.parent / "tables" / "pictures.md").read_text()
    assert NOT_INSTALLED in text
    assert tables_of(text)[-1][1][2:5] == ["", "", ""]
    request.getfixturevalue("bm3d")
    table.main([str(folder.parent)])
    text = (folder.parent / "tables" / "pictures.md").read_text()
    assert NOT_INSTALLED not in text
    assert all(tables_of(text)[-1][1][2:5])


def test_a_system_that_fails_does_not_end_the_table(folder, monkeypatch, capsys):
    def fails(noisy, sigma):
        raise RuntimeError("no such instruction")

    monkeypatch.setitem(sys.modules, "bm3d", types.SimpleNamespace(bm3d=fails))
    make_run(folder, "coffee", NOISE, 0)
    table.main([str(folder.parent)])
    assert "left out: BM3D, told: RuntimeError: no such instruction" in capsys.readouterr().out


def test_no_runs(tmp_path):
    with pytest.raises(SystemExit, match="no finished runs there; `make pictures` makes them"):
        table.main([str(tmp_path)])


def test_the_page_has_the_table_and_not_every_run(folder, bm3d):
    make_run(folder, "coffee", NOISE, 0)
    table.main([str(folder.parent)])
    page = report.build(folder.parent)
    assert "<h2>Development set</h2>" in page
    assert page.count("<table>") == 3
    assert "half B (reported), effort=default" in page
    assert "Other restored images" not in page


def test_curve_of_psnr_against_seconds(folder, bm3d):
    """Means over pictures, of the median seconds of each."""
    for seed, seconds in ((0, 110.0), (1, 120.0), (2, 190.0)):
        set_times(make_run(folder, "coffee", NOISE, seed, "fast"), seconds)
    page, best = make_run(folder, "page", NOISE, 0, "fast"), make_run(folder, "coffee", NOISE, 0, "best")
    set_times(page, 140.0)
    set_times(best, 400.0)
    make_run(folder, "house", NOISE, 0, "default")
    runs = collect_runs(folder)
    found = measure_peers(sorted({run.case for run in runs}), folder / "clean", folder / "peers.csv")
    (axes,) = table.draw(table.arrange(runs, found)).axes
    ours, theirs = (line.get_xydata() for line in axes.lines)
    coffee = statistics.mean(run.psnr for run in runs if run.case.picture == "coffee" and run.effort == "fast")
    assert ours[0] == pytest.approx([(120 + 140) / 2, (coffee + psnr_of(page)) / 2])
    assert ours[1] == pytest.approx([400, psnr_of(best)])
    assert [text.get_text() for text in axes.texts] == ["fast", "best"]
    assert len(theirs) == 1
    assert table.draw([]) is None
