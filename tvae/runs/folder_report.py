"""The table of a folder's pictures: as CSV, and as a page that shows them."""

from __future__ import annotations

import base64
import csv
import html
import io
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tvae.io.atomic import write_atomically
from tvae.io.formats import encode
from tvae.io.image_file import read_image, stretched, to_screen
from tvae.runs.files import PAGE, TABLE

SHOWN = 320  # pixels, at most, along a side of what is shown

STYLE = """body { font: 15px sans-serif; margin: 2em } td, th { padding: 4px 9px; text-align: left }
table { border-collapse: collapse } tr { border-bottom: 1px solid #ccc } .failed { color: #a00 }
div { overflow-x: auto } td:first-child, .failed td { overflow-wrap: anywhere } img { max-width: 100% }
@media (max-width: 600px) { body { font-size: 13px; margin: 8px } td, th { padding: 2px } img { max-width: 17vw } }"""


@dataclass(frozen=True)
class Row:
    name: str
    status: str  # finished, or failed
    noise_level: float | None = None
    psnr_input: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    seconds: float | None = None
    run: str = ""  # directory
    problem: str = ""

    @classmethod
    def of(cls, name: str, path: Path, metrics: dict[str, Any]) -> Row:
        """A row from the metrics of a run."""
        own = {f.name for f in fields(cls)} & metrics.keys()
        known = {key: metrics[key] for key in own} | {"seconds": metrics.get("seconds_total", metrics.get("seconds"))}
        return cls(**{**known, "name": name, "run": str(path)})


def write_report(path: Path, rows: list[Row], title: str = "Restored pictures") -> None:
    """Write both files to the folder `path`."""
    table = io.StringIO()
    writer = csv.DictWriter(table, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomically(path / TABLE, table.getvalue().encode())
    has_clean = any(row.psnr is not None for row in rows)
    titles = ["picture", "before", "after", "noise", *(["PSNR", "SSIM"] if has_clean else []), "seconds"]
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "\n".join(_shown(row, has_clean) for row in rows)
    page = "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    page += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    page += f"<h1>{html.escape(title)}</h1><p>{_count(rows)}</p><div><table><tr>{head}</tr>\n{body}</table></div>\n"
    write_atomically(path / PAGE, page.encode())


def _count(rows: list[Row]) -> str:
    n_failed = sum(row.status == "failed" for row in rows)
    return f"{len(rows)} pictures" + (f", of which {n_failed} failed" if n_failed else "")


def _shown(row: Row, has_clean: bool) -> str:
    name = html.escape(row.name)
    if row.status == "failed":
        return f"<tr class=failed><td>{name}</td><td colspan=6>{html.escape(row.problem)}</td></tr>"
    pictures = "".join(f"<td>{_picture(Path(row.run) / file)}</td>" for file in ("input.png", "restored.png"))
    before = "" if row.psnr_input is None else f" (from {row.psnr_input:.2f})"
    psnr = "" if row.psnr is None else f"{row.psnr:.2f} dB{before}"
    quality = [psnr, _number(row.ssim, 4)] if has_clean else []
    numbers = [_number(row.noise_level), *quality, _number(row.seconds, 1)]
    return f"<tr><td>{name}</td>{pictures}{''.join(f'<td>{each}</td>' for each in numbers)}</tr>"


def _number(value: float | None, n_digits: int = 2) -> str:
    return "" if value is None else f"{value:.{n_digits}f}"


def _picture(path: Path) -> str:
    """A picture as a part of the page, thinned out to the size shown."""
    if not path.is_file():
        return ""
    image = read_image(path)
    step = math.ceil(max(image.pixels.shape[:2]) / SHOWN)
    content = encode(to_screen(image.pixels[::step, ::step], stretched(image)), ".png")
    return f'<img src="data:image/png;base64,{base64.b64encode(content).decode()}" alt="{html.escape(path.name)}">'
