"""Pictures inside an HTML page."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH_MAX = 1200  # pixels of an image in the page


def picture(path: Path, caption: str) -> str:
    """An image inside the page, made smaller if it is wide."""
    try:
        with Image.open(path) as image:
            shown = image.convert("RGB") if image.mode not in ("L", "RGB") else image.copy()
            if image.mode.startswith("I"):  # 16 bit
                shown = Image.fromarray((np.asarray(image, dtype=np.float64) / 257).astype(np.uint8))
    except OSError:
        return f"<p>{html.escape(f'{path}: cannot be read')}</p>"
    shown.thumbnail((WIDTH_MAX, 10 * WIDTH_MAX))
    buffer = io.BytesIO()
    shown.save(buffer, format="PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
