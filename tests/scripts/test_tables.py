"""Tables, peers and the report page, from made-up and from real runs."""

import base64
import csv
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from omegaconf import OmegaConf

from scripts import peers, report, tables
from tests.conftest import small_config
from tests.test_recipe import completed
from tvae.data import dataset as datasets
from tvae.options.schema import ImageConfig
from tvae.data.named import camera
from tvae.data.image_file import write_image


def make_run(path, psnr, seconds=120.0, epochs=40, status="finished"):
    path.mkdir(parents=True)
    metrics = {"status": status, "psnr": psnr, "psnr_input": 20.0, "seconds": seconds, "epochs": epochs, "elbo": -1.5,
               "machine": {"processor": "abacus", "cores": "2", "tvae": "0.1.0 (1234567)"}}  # fmt: skip
    (path / "metrics.json").write_text(json.dumps(metrics))
    words = dict(word.split("=") for word in path.name.split(",") if "=" in word)
    values = {name: float(words[name]) for name in ("noise", "missing") if name in words}
    config = small_config(dataset=ImageConfig(name=words.get("dataset", "house")), threads=1, **values)
    (path / "config.yaml").write_text(OmegaConf.to_yaml(config))


@pytest.fixture
def outputs(tmp_path):
    """Three seeds at one level, two at another, a run that failed, some by the paper's parameters, and peers."""
    for seed, psnr in enumerate([34.0, 34.2, 34.4]):
        make_run(tmp_path / "table1" / "quick" / f"noise=15.0,seed={seed}", psnr, seconds=60 * (seed + 1))
    for seed, psnr in enumerate([32.0, 33.0]):
        make_run(tmp_path / "table1" / "quick" / f"noise=25,seed={seed}", psnr)
    make_run(tmp_path / "table1" / "quick" / "noise=50,seed=0", 11.0, status="failed")
    make_run(tmp_path / "table1" / "paper" / "noise=15,seed=0", 35.0, epochs=500, seconds=3600)
    (tmp_path / "peers").mkdir()
    for seed, psnr in enumerate([30.0, 31.0]):
        wavelets = {"psnr": psnr, "seconds": 6.0, "needs": "nothing", "how": "scikit-image"}
        found = {"wavelets": wavelets, "BM3D": wavelets | {"psnr": 35.0}}
        (tmp_path / "peers" / f"noise=15,seed={seed}.json").write_text(json.dumps(found))
    return tmp_path


def rows_of(text):
    lines = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells] for cells in lines[2:]}


def test_means_spread_number_and_difference(outputs, capsys):
    tables.main(["table1", str(outputs)])
    rows = rows_of((outputs / "tables" / "table1.md").read_text())
    ours = rows["tvae, quick"]
    assert ours[1:4] == ["34.20 ± 0.20 (3)", f"32.50 ± {math.sqrt(0.5):.2f} (2)", ""]  # what failed does not count
    assert ours[4] == "-0.07 / -0.15 /"  # the paper has 34.27 and 32.65
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
    differences = {}
    for name in ("table1", "table2"):
        for line in csv.DictReader(tables.as_csv(*tables.collect(name, outputs)).splitlines()):
            if line["difference"]:
                differences[name, line["name"], line["column"]] = line["difference"]
    assert differences == {
        ("table1", "tvae, quick", "noise=15"): "-0.07",
        ("table1", "tvae, quick", "noise=25"): "-0.15",
        ("table1", "tvae, the paper's parameters", "noise=15"): "+0.73",
        ("table1", "var-BSC (our linear decoder)", "noise=15"): "-0.25",
        ("table2", "tvae, the paper's parameters", "noise=15"): "+0.73",
        ("table2", "BM3D", "noise=15"): "+0.06",
    }


@pytest.mark.parametrize("name", ["metrics.json", "config.yaml"])
def test_a_damaged_run_is_left_out_and_named(outputs, name, capsys):
    damaged = outputs / "table1" / "quick" / "noise=15.0,seed=1" / name
    damaged.write_text(damaged.read_text()[:20] + "}")
    (outputs / "peers" / "noise=15,seed=0.json").write_text("{")
    _, rows = tables.collect("table1", outputs)
    assert [row.cells[0] for row in rows[:1]] == [[34.0, 34.4]]
    said = capsys.readouterr().err
    assert f"left out: {damaged}" in said
    assert "noise=15,seed=0.json: cannot be read" in said


def test_nothing_cited_can_be_taken_for_measured(outputs):
    for name in ("table1", "table2", "table-n2v", "inpainting"):
        _, rows = tables.collect(name, outputs)
        for row in rows:
            assert row.origin in ("measured", "cited")
            if row.origin == "cited":
                assert "Table" in row.note
                assert not any("(" in row.shown(c) for c in range(len(row.cells)))  # no number of runs
                assert not row.minutes
    for text in (
        tables.as_markdown(*tables.collect("table1", outputs)),
        tables.as_latex(*tables.collect("table1", outputs)),
    ):
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


def test_latex_is_a_whole_table(outputs):
    text = tables.as_latex(*tables.collect("table1", outputs))
    assert text.startswith(r"\begin{tabular}{lccccclll}")
    assert text.rstrip().endswith(r"\end{tabular}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {8}


def test_latex_takes_any_text():
    row = tables.Row("a_b", "measured", "50 % & more", [[1.0], [], []], [[], [], []], "#1")
    assert r"a\_b & 1.00 (1) &  &  &  &  & 50 \% \& more & measured & \#1 \\" in tables.as_latex(
        {"columns": ["noise=15", "noise=25", "noise=50"]}, [row]
    )


def test_runs_of_table_2_fill_the_one_beside_noise2void(tmp_path):
    make_run(tmp_path / "table2" / "quick" / "noise=50,seed=0", 29.9)
    _, rows = tables.collect("table-n2v", tmp_path)
    assert rows[0].cells == [[], [], [29.9]]


def test_table_2_takes_the_lower_levels_of_the_paper_from_table_1(tmp_path):
    for level in (15.0, 50.0):
        make_run(tmp_path / "table1" / "paper" / f"noise={level},seed=0", level)
    make_run(tmp_path / "table2" / "paper" / "noise=50.0,seed=0", 29.9)
    _, rows = tables.collect("table2", tmp_path)
    assert rows[0].cells == [[15.0], [], [29.9]]


def test_inpainting_runs_find_their_column(tmp_path):
    make_run(tmp_path / "inpainting" / "quick" / "dataset=castle,missing=0.8,seed=0", 27.0)
    _, rows = tables.collect("inpainting", tmp_path)
    assert rows[0].cells == [[], [], [27.0]]


def test_no_such_table(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        tables.main(["table9", str(tmp_path)])
    assert end.value.code == 2
    assert "choose from" in capsys.readouterr().err


# ---- peers


@pytest.fixture(scope="module")
def structured():
    """A clean picture with edges and a gradient."""
    rows, columns = np.mgrid[:48, :48]
    return (80.0 + columns + 60 * ((rows // 12 + columns // 12) % 2))[..., None]


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda p: p.name)
def test_every_peer_denoises(peer, structured):
    if not peer.is_installed:
        pytest.skip(f"needs {' and '.join(peer.packages)}: pip install '.[peers]'")
    noisy = structured + 25 * np.random.default_rng(0).normal(size=structured.shape)
    before = np.square(noisy - structured).mean()
    after = np.square(peer.restore(noisy[..., 0], 25.0) - structured[..., 0]).mean()
    assert after < before / 2


def test_peers_see_the_arrays_of_our_runs(monkeypatch):
    """The same noise, bit by bit, that a run with this corruption_seed trains on."""
    monkeypatch.setattr(peers, "read_named", lambda name: camera())
    found = {name: corrupted for name, _, corrupted, _, _ in peers.arrays()}
    config = completed("dataset=camera", "noise=25", "corruption_seed=2", "dataset.train_stride=9")
    assert np.array_equal(found["noise=25,seed=2"], datasets.load(config).picture.noisy)
    config = completed("dataset=camera", "missing=0.8", "corruption_seed=1", "dataset.train_stride=9")
    assert np.array_equal(found["dataset=castle,missing=0.8,seed=1"], datasets.load(config).picture.noisy)


def test_a_peer_that_is_not_installed_is_left_out_and_said(tmp_path, monkeypatch, capsys, structured):
    noisy = structured + np.random.default_rng(0).normal(size=structured.shape)
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "bm3d" else object())
    monkeypatch.setattr(peers, "PEERS", [p for p in peers.PEERS if p.name in ("wavelets", "BM3D")])
    monkeypatch.setattr(peers, "arrays", lambda: [("noise=15,seed=0", structured, noisy, 15.0, None)])
    peers.main([str(tmp_path)])
    assert "left out: BM3D; pip install '.[peers]'" in capsys.readouterr().out
    first = json.loads((tmp_path / "noise=15,seed=0.json").read_text())
    assert list(first) == ["wavelets"]
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    monkeypatch.setattr(peers, "PEERS", [p._replace(restore=lambda noisy, _: noisy) for p in peers.PEERS])
    peers.main([str(tmp_path)])  # what has been installed since is measured, what was measured stays
    second = json.loads((tmp_path / "noise=15,seed=0.json").read_text())
    assert list(second) == ["wavelets", "BM3D"]
    assert second["wavelets"] == first["wavelets"]


def test_inpainting_peer(structured):
    missing = np.random.default_rng(0).random((48, 48)) < 0.3
    found = peers.measure(structured, np.where(missing[..., None], 0, structured), 0.0, missing)
    assert found["biharmonic interpolation"]["psnr"] > 25


# ---- report


@pytest.fixture
def page(outputs):
    run = outputs / "table1" / "quick" / "noise=15.0,seed=0"
    rng = np.random.default_rng(0)
    for name in ("input.png", "restored.png", "uncertainty.png"):
        write_image(run / name, rng.integers(0, 255, (32, 40), dtype=np.uint8))
    deep = outputs / "microscope"
    make_run(deep, None)
    write_image(deep / "input.png", rng.integers(0, 65535, (16, 16), dtype=np.uint16))
    write_image(deep / "restored.png", np.full((16, 16), 65535, dtype=np.uint16))
    (outputs / "bars").mkdir()
    write_image(outputs / "bars" / "bars_elbo.png", rng.integers(0, 255, (30, 60), dtype=np.uint8))
    (outputs / "bars" / "bars_torn.png").write_bytes(b"\x89PNG")
    (outputs / "scaling").mkdir()
    (outputs / "scaling" / "scaling.md").write_text(
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n\ntext\n\n| c |\n|---|\n| 3 |\n"
    )
    make_run(outputs / "chaos" / "run_0", 20.0)
    write_image(outputs / "chaos" / "run_0" / "restored.png", rng.integers(0, 255, (8, 8), dtype=np.uint8))
    report.main([str(outputs)])
    return outputs / "report.html"


class Content(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.images, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        if tag == "img":
            self.images.append(given)
        self.links += [given[name] for name in ("href", "src") if name in given]


def test_report_holds_tables_and_images_and_needs_no_network(page):
    text = page.read_text()
    content = Content(text)
    assert content.tags.count("table") == 3 + 2  # those with a measured row, not inpainting; those of scaling
    assert "<tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td>2</td></tr>" in text
    assert "bars_torn.png: cannot be read" in text
    assert "34.20 ± 0.20 (3)" in text
    assert [image["alt"] for image in content.images][:2] == ["input, 20.00 dB", "restored, 34.00 dB"]
    assert len(content.images) == 3 + 2 + 1
    assert all(link.startswith("data:image/png;base64,") for link in content.links)
    assert all(base64.b64decode(link.partition(",")[2]).startswith(b"\x89PNG") for link in content.links)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "7 runs: processor abacus; cores 2; tvae 0.1.0 (1234567)" in text


def test_deep_images_are_not_black(page):
    import io

    from PIL import Image

    (white,) = (i["src"] for i in Content(page.read_text()).images if i["alt"] == "restored")
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(white.partition(",")[2])))).min() == 255


def test_report_without_results(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        report.main([str(tmp_path)])
    assert end.value.code == 2
    assert "no results there" in capsys.readouterr().err


@pytest.mark.parametrize("width", [390, 1280])
def test_report_in_a_browser(page, tmp_path, width):
    """All images load, and nothing but a table's own box is wider than the window."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    probe = tmp_path / "probe.html"
    script = (
        "<script>addEventListener('load', () => { const images = [...document.images];"
        "document.title = `${images.filter(i => i.complete && i.naturalWidth > 0).length} images, "
        "${document.querySelectorAll('table').length} tables, "
        "${document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'}` })</script>"
    )
    probe.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--dump-dom"]  # fmt: skip
    found = subprocess.run([browser, *options, probe.as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>6 images, 5 tables, fits</title>" in found.stdout, found.stderr[-500:]
