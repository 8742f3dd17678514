"""Pictures whose content looks like noise to a denoiser, and what becomes of it: text, rules, stars, dots, masks.

    python -m scripts.pictures.harmless [--sigma 0 2 5 8 25] [--only stars text_light] [--side 128]

Every picture is drawn here, so that its clean version is known. It is restored as a user would (`auto`) and with
`noise_model=gaussian` (`plain`). What must hold: auto is at most 0.1 dB below plain; a clean picture comes back with at
least 50 dB (textures: 40); a star keeps 90 % of its height.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import tvae
from scripts.pictures.development_set import grey, read_source
from tvae.restoration.metrics import psnr

SIDE = 128
SIGMAS = (0.0, 2.0, 5.0, 8.0, 25.0)
WORDS = "In the model's words: every pixel is either explained by structure and noise, or it stays as it is. 0123456789"
STAR_PLACES = 8  # along a side of the grid that stars are on, about


def text(side: int, ink: float, paper: float) -> np.ndarray:
    """(side, side): lines of small antialiased letters."""
    image = Image.new("L", (side, side), round(paper))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(10)
    per_line = max(4, side // 5)
    for i, top in enumerate(range(2, side - 10, 13)):
        start = i * per_line % len(WORDS)
        draw.text((2, top), (WORDS + WORDS)[start : start + per_line], fill=round(ink), font=font)
    return np.asarray(image, dtype=np.float64)


def rules(side: int, ink: float = 0, paper: float = 255, step: int = 17) -> np.ndarray:
    """A table's rules, one pixel wide."""
    pixels = np.full((side, side), float(paper))
    pixels[step // 2 :: step] = ink
    pixels[:, step // 2 :: 2 * step] = ink
    return pixels


def dotted(side: int) -> np.ndarray:
    """Dotted lines, horizontal and diagonal."""
    pixels = np.full((side, side), 240.0)
    pixels[10::20, ::3] = 20
    for i in range(0, side, 2):
        pixels[i, (i * 2 + 5) % side] = 60
    return pixels


def star_places(side: int) -> list[tuple[int, int]]:
    rng, step = np.random.default_rng(0), side // STAR_PLACES
    grid = [(y, x) for y in range(step, side - step // 2, step) for x in range(step, side - step // 2, step)]
    return [(y + int(rng.integers(-2, 3)), x + int(rng.integers(-2, 3))) for y, x in grid]


def stars(side: int, width: float | None, height: float = 150.0, sky: float = 30.0) -> np.ndarray:
    """Stars of one pixel, or Gaussian ones of this width (standard deviation), on an even sky."""
    pixels = np.full((side, side), sky)
    y, x = np.mgrid[:side, :side]
    for top, left in star_places(side):
        if width is None:
            pixels[top, left] += height
        else:
            pixels += height * np.exp(-((y - top) ** 2 + (x - left) ** 2) / (2 * width**2))
    return pixels.clip(0, 255)


def dots(side: int) -> np.ndarray:
    pixels = np.full((side, side), 200.0)
    pixels[4::6, 4::6] = 40
    return pixels


def checkerboard(side: int, of: int) -> np.ndarray:
    y, x = np.mgrid[:side, :side] // of
    return np.where((y + x) % 2 == 0, 60.0, 190.0)


def mask(side: int) -> np.ndarray:
    """Black and white: discs and a polygon."""
    image = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(image)
    draw.ellipse((side * 0.1, side * 0.15, side * 0.45, side * 0.5), fill=255)
    draw.polygon([(side * 0.6, side * 0.2), (side * 0.9, side * 0.5), (side * 0.55, side * 0.85)], fill=255)
    return np.asarray(image, dtype=np.float64)


def screenshot(side: int) -> np.ndarray:
    """A window: a title bar, buttons, rules and text."""
    image = Image.fromarray(text(side, 30, 250).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, side, 14), fill=90)
    draw.text((4, 1), "Untitled 1", fill=255, font=ImageFont.load_default(10))
    draw.rectangle((side - 40, side - 22, side - 6, side - 6), fill=220, outline=110)
    draw.line((0, side // 2, side, side // 2), fill=180)
    return np.asarray(image, dtype=np.float64)


def gradient(side: int) -> np.ndarray:
    return np.rint(np.add.outer(np.linspace(20, 120, side), np.linspace(0, 110, side)))


def of_skimage(name: str) -> Callable[[int], np.ndarray]:
    def crop(side: int) -> np.ndarray:
        pixels = grey(read_source(name))
        top, left = ((length - side) // 2 for length in pixels.shape)
        return np.rint(pixels[top : top + side, left : left + side])

    return crop


PICTURES: dict[str, Callable[[int], np.ndarray]] = {
    "text_dark": lambda side: text(side, 20, 240),
    "text_light": lambda side: text(side, 255, 50),
    "text_on_black": lambda side: text(side, 255, 0),
    "rules": rules,
    "rules_grey": lambda side: rules(side, 90, 150),
    "grid": lambda side: rules(side, 60, 200, 8),
    "dotted": dotted,
    "stars_pixel": lambda side: stars(side, None),
    "stars_0.5": lambda side: stars(side, 0.5),
    "stars_1": lambda side: stars(side, 1.0),
    "stars_1.5": lambda side: stars(side, 1.5),
    "stars_saturated": lambda side: stars(side, 0.8, 600.0),
    "dots": dots,
    "checkerboard_1": lambda side: checkerboard(side, 1),
    "checkerboard_2": lambda side: checkerboard(side, 2),
    "checkerboard_8": lambda side: checkerboard(side, 8),
    "mask": mask,
    "screenshot": screenshot,
    "gradient": gradient,
}
CLEAN_ONLY = {
    name.partition(".")[0]: of_skimage(name)
    for name in (
        "camera.png", "astronaut.png", "brick.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png",
        "coins.png", "grass.png", "gravel.png", "horse.png", "ihc.png", "moon.png", "page.png", "retina.jpg",
        "rocket.jpg", "text.png",
    )
}  # fmt: skip


def noisy_version(clean: np.ndarray, sigma: float, seed: int = 0) -> np.ndarray:
    """An 8-bit picture, as a file would hold it."""
    noise = sigma * np.random.default_rng(seed).normal(size=clean.shape)
    return np.rint((clean + noise).clip(0, 255)).astype(np.uint8)


def lowest_star(restored: np.ndarray, clean: np.ndarray, sky: float = 30.0) -> float:
    """The smallest share of its height that a star keeps."""
    return min(
        (float(restored[place]) - sky) / (float(clean[place]) - sky)
        for place in star_places(len(clean))
    )  # fmt: skip


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.harmless", description=__doc__.splitlines()[0])
    parser.add_argument("--sigma", type=float, nargs="+", default=SIGMAS)
    parser.add_argument("--only", nargs="+", default=[*PICTURES, *CLEAN_ONLY])
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--effort", default="default")
    options = parser.parse_args(words)
    print("| picture | sigma | noisy | plain | auto | auto - plain | lowest star | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only:
        make = PICTURES.get(name) or CLEAN_ONLY[name]
        for sigma in options.sigma if name in PICTURES else [0.0]:
            clean = make(options.side)
            noisy = noisy_version(clean, sigma)
            started = time.monotonic()
            auto, plain = (
                tvae.denoise(noisy, noise_model=kind, effort=options.effort).astype(np.float64)
                for kind in ("auto", "gaussian")
            )
            before, of_plain, of_auto = (
                min(psnr(clean[..., None], each.astype(np.float64)[..., None], 255.0), 99.0)
                for each in (noisy, plain, auto)
            )
            star = f"{lowest_star(auto, clean):.2f}" if name.startswith("stars") else ""
            print(
                f"| {name} | {sigma:g} | {before:.1f} | {of_plain:.2f} | {of_auto:.2f} | {of_auto - of_plain:+.2f} "
                f"| {star} | {time.monotonic() - started:.0f} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
