"""The page of all results, from made-up runs."""

import base64
import io
import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from scripts.paper import report
from tests.made_up_runs import make_outputs, make_run
from tvae.io.image_file import write_image


@pytest.fixture
def page(tmp_path):
    outputs = tmp_path
    make_outputs(outputs)
    for level, seed in itertools.product((15, 25, 50), range(3)):  # the widest rows that there are
        make_run(outputs / "table1" / "slab" / f"noise={level},seed={seed}", 30.0 + seed)
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
    cells = '<td class="number">1</td><td class="number">2</td>'
    assert f"<tr><th>a</th><th>b</th></tr>\n<tr>{cells}</tr>" in text
    assert "<td></td>" not in text
    assert '<td class="number">-</td>' in text, "a level without runs"
    assert "bars_torn.png: cannot be read" in text
    assert "34.20 ± 0.20 (3)" in text
    assert [image["alt"] for image in content.images][:2] == ["input, 20.00 dB", "restored, 34.00 dB"]
    assert len(content.images) == 3 + 2 + 1
    assert all(link.startswith("data:image/png;base64,") for link in content.links)
    assert all(base64.b64decode(link.partition(",")[2]).startswith(b"\x89PNG") for link in content.links)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "16 runs: processor abacus; cores 2; tvae 0.1.0 (1234567)" in text


def test_deep_images_are_not_black(page):
    (white,) = (i["src"] for i in Content(page.read_text()).images if i["alt"] == "restored")
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(white.partition(",")[2])))).min() == 255


def test_curves_of_recorded_runs_are_shown(tmp_path, recorded_folder):
    make_outputs(tmp_path)
    assert "PSNR over epochs" not in report.build(tmp_path)
    recorded_folder.mkdir()
    write_image(recorded_folder / "curves.png", np.zeros((8, 8), dtype=np.uint8))
    assert "PSNR over epochs, every recorded run" in [i["alt"] for i in Content(report.build(tmp_path)).images]


def test_report_without_results(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        report.main([str(tmp_path)])
    assert end.value.code == 2
    assert "no results there" in capsys.readouterr().err


@pytest.mark.parametrize("width", [390, 1280])
def test_report_in_a_browser(page, tmp_path, width):
    """All images load, and nothing but a table's own box is wider than the window; on a desktop not even that."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    probe = tmp_path / "probe.html"
    script = (
        "<script>addEventListener('load', () => { const images = [...document.images];"
        "document.title = `${images.filter(i => i.complete && i.naturalWidth > 0).length} images, "
        "${document.querySelectorAll('table').length} tables, "
        "${document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'}, ${"
        "[...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth).length} scroll` })"
        "</script>"
    )
    probe.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--dump-dom"]  # fmt: skip
    found = subprocess.run([browser, *options, probe.as_uri()], capture_output=True, text=True, timeout=120)
    n_scrolled = {390: 3, 1280: 0}[width]
    assert f"<title>6 images, 5 tables, fits, {n_scrolled} scroll</title>" in found.stdout, found.stderr[-500:]
