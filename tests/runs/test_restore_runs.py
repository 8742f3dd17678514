"""Restoration from the picture alone: by command, by run directory and by Python call."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from scipy.stats import spearmanr
from skimage.restoration import inpaint_biharmonic

import tvae
from tests.processes import metrics
from tvae import api
from tvae.data.picture import add_noise, drop_pixels
from tvae.io.image_file import read_image, write_image
from tvae.restoration.metrics import psnr

# A model for pictures of a few thousand pixels, trained in seconds
FAST = [
    "model.n_latents=24",
    "states.n_states=16",
    "batch_size=64",
    "lr.max=0.02",
    "lr.epochs_per_cycle=8",
    "threads=1",
]
FAST += ["dataset.patch_size=6", "epochs=16"]


def structured(height=56, width=48):
    """Stripes that change direction, and blocks: much structure, all of it repeated."""
    y, x = np.mgrid[:height, :width]
    picture = np.where((x // 4 + (y > height // 2) * (y // 4)) % 2, 60, 190)
    picture[(y // 14 % 2 == 0) & (x // 16 % 2 == 0)] = 120
    return picture.astype(np.uint8)


CLEAN = structured()
NOISY = add_noise(CLEAN[..., None].astype(float), 40, seed=3)[..., 0]


def test_denoising_gains_and_the_run_directory_holds_the_pictures(command):
    write_image(Path("clean.png"), CLEAN)
    out = command.ok(
        "denoise", "image=clean.png", "corruption=gaussian", "noise=40", *FAST, "restore_every=8", "hydra.run.dir=run"
    )
    found = metrics("run")
    assert found["psnr"] > found["psnr_input"] + 6
    assert found["psnr_input"] == pytest.approx(16.1, abs=0.3)
    assert found["sigma_true"] == 40
    assert found["sigma"] == pytest.approx(40, rel=0.2), "learned, not told"
    assert 0 < found["ssim"] <= 1
    assert f"-> {found['psnr']:.2f} dB" in out
    assert {p.name for p in Path("run/figures").iterdir()} == {
        "comparison.png",
        "decoder.png",
        "latents.png",
        "noise.png",
        "training.png",
    }
    restored = read_image("run/restored.png")
    assert (restored.pixels.shape, restored.dtype) == ((56, 48, 1), np.uint8)
    assert psnr(CLEAN[..., None], restored.pixels, 255) == pytest.approx(found["psnr"], abs=0.1)
    shown = read_image("run/uncertainty.png").pixels / 255 * found["uncertainty_scale"]
    np.testing.assert_allclose(
        shown[..., 0], tifffile.imread("run/uncertainty.tiff").squeeze(), atol=0.01 * shown.max()
    )
    rows = [row.split(",") for row in Path("run/history.csv").read_text().splitlines()]
    column = rows[0].index("psnr")
    assert [bool(row[column]) for row in rows[1:]] == [epoch % 8 == 0 for epoch in range(1, 17)]

    command.ok("denoise", "run=run", "hydra.run.dir=again")
    assert Path("again/restored.png").read_bytes() == Path("run/restored.png").read_bytes()
    assert Path("again/uncertainty.tiff").read_bytes() == Path("run/uncertainty.tiff").read_bytes()
    assert {k: metrics("again")[k] for k in ("psnr", "ssim", "elbo")} == {k: found[k] for k in ("psnr", "ssim", "elbo")}


def test_inpainting_beats_biharmonic_interpolation_and_keeps_known_pixels(command):
    write_image(Path("clean.png"), CLEAN)
    command.ok("inpaint", "image=clean.png", "missing=0.5", *FAST, "epochs=40", "hydra.run.dir=run")
    missing = drop_pixels(CLEAN.shape, 0.5, seed=0)
    restored = read_image("run/restored.png").pixels[..., 0]
    assert (restored[~missing] == CLEAN[~missing]).all()
    simple = inpaint_biharmonic(np.where(missing, 0, CLEAN / 255), missing) * 255
    assert metrics("run")["psnr"] > psnr(CLEAN, simple, 255) + 1
    assert metrics("run")["psnr_input"] is None


def test_noisy_and_incomplete_pictures_are_estimated_everywhere(command):
    write_image(Path("clean.png"), CLEAN)
    command.ok(
        "inpaint", "image=clean.png", "missing=0.3", "corruption=gaussian", "noise=30", *FAST, "hydra.run.dir=run"
    )
    missing = drop_pixels(CLEAN.shape, 0.3, seed=0)
    estimate = read_image("run/restored.png").pixels[..., 0]
    assert psnr(CLEAN[~missing], estimate[~missing], 255) > 20
    assert psnr(CLEAN[missing], estimate[missing], 255) > 17


def test_a_mask_and_a_clean_picture_from_files(command):
    mask = np.zeros(CLEAN.shape, np.uint8)
    mask[20:30, 10:14] = 255
    damaged = np.where(mask, 0, CLEAN).astype(np.uint8)
    for name, array in (("clean", CLEAN), ("mask", mask), ("damaged", damaged)):
        write_image(Path(f"{name}.png"), array)
    files = ["image=damaged.png", "mask=mask.png", "clean=clean.png"]
    command.ok("inpaint", *files, *FAST, "hydra.run.dir=run")
    restored = read_image("run/restored.png").pixels[..., 0]
    assert (restored[mask == 0] == CLEAN[mask == 0]).all()
    assert metrics("run")["psnr"] > psnr(CLEAN, np.where(mask, CLEAN[mask == 0].mean(), CLEAN), 255)


def test_training_on_fewer_patches_and_restoring_all(command):
    write_image(Path("clean.png"), CLEAN)
    options = [*FAST, "dataset.train_stride=2", "epochs=48", "batch_size=16", "restoration.n_rounds=4"]
    command.ok("denoise", "image=clean.png", "corruption=gaussian", "noise=40", *options, "hydra.run.dir=run")
    assert metrics("run")["psnr"] > metrics("run")["psnr_input"] + 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("denoise", [], "nothing to denoise: give image=FILE, or noise=LEVEL"),
        ("inpaint", [], "nothing to fill in: give image=FILE with mask=FILE, or missing=FRACTION"),
        ("denoise", ["run=nowhere"], "run=nowhere: there is no such directory"),
        ("denoise", ["run=nowhere", "seed=3"], "seed: a run keeps its options"),
        ("train", ["run=nowhere"], "run=nowhere: is for tvae.denoise and tvae.inpaint"),
        ("denoise", ["image=none.png"], "none.png: No such file or directory"),
        (
            "denoise",
            ["image=small.png", "dataset.patch_size=8"],
            "small.png: 5x6 pixels are smaller than a patch of 8x8",
        ),
        ("denoise", ["image=flat.png"], "flat.png: all known pixels are equal"),
        ("denoise", ["image=text.png"], "text.png: not a PNG, JPEG, TIFF, BMP, WebP, GIF or NumPy file"),
        ("inpaint", ["image=clean.png", "mask=small.png"], "small.png: 5x6 pixels, but the image has 48x56"),
        ("inpaint", ["image=clean.png", "mask=full.png"], "clean.png: all pixels are missing"),
        ("inpaint", ["image=clean.png", "missing=1"], "missing=1.0: must be below 1"),
        ("denoise", ["image=clean.png", "noise=-5"], "noise=-5.0: must be at least 0"),
    ],
)
def test_a_mistake_gets_one_line_and_code_2(command, name, options, message):
    write_image(Path("clean.png"), CLEAN)
    write_image(Path("small.png"), CLEAN[12:18, 14:19])
    write_image(Path("flat.png"), np.full((20, 20), 7, np.uint8))
    write_image(Path("full.png"), np.full(CLEAN.shape, 255, np.uint8))
    Path("text.png").write_text("no picture")
    before = {p: p.read_bytes() for p in Path().iterdir()}
    out = command.refused(name, *options)
    assert out.startswith(f"error: {message}")
    assert len(out.splitlines()) == 1
    assert before == {p: p.read_bytes() for p in Path().iterdir() if p.is_file()}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_an_array_in_the_same_kind_of_array_out(dtype):
    peak = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1
    image = (NOISY / 255).clip(0, 1) * peak
    image = (image.round() if peak > 1 else image).astype(dtype)
    copy = image.copy()
    restored = tvae.denoise(image, overrides=[*FAST, "epochs=8"])
    assert (restored.dtype, restored.shape) == (image.dtype, image.shape)
    assert psnr(CLEAN / 255, restored / peak, 1) > psnr(CLEAN / 255, image / peak, 1) + 3
    assert np.array_equal(image, copy)


def test_channels_on_any_axis_and_the_rng_decides():
    colour = np.stack([NOISY, NOISY[::-1], 255 - NOISY])[:, :24, :24].clip(0, 255).astype(np.uint8)
    options = [*FAST, "epochs=2"]
    first = tvae.denoise(colour, channel_axis=0, overrides=options)
    assert first.shape == (3, 24, 24)
    last = tvae.denoise(np.moveaxis(colour, 0, -1), channel_axis=-1, overrides=options)
    assert np.array_equal(np.moveaxis(last, -1, 0), first)
    assert not np.array_equal(tvae.denoise(colour, channel_axis=0, rng=1, overrides=options), first)
    generator = np.random.default_rng(0)
    assert tvae.denoise(colour, channel_axis=0, rng=generator, overrides=options).shape == first.shape


def test_the_call_survives_the_import_of_the_command():
    import tvae.denoise
    import tvae.inpaint

    with pytest.raises(ValueError, match="must have 2, 3 with channel_axis"):
        tvae.denoise(np.zeros((3, 4, 5, 6)))
    with pytest.raises(ValueError, match="a mask of shape"):
        tvae.inpaint(CLEAN, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="pixels of type complex128"):
        tvae.denoise(CLEAN.astype(complex))
    assert np.array_equal(tvae.denoise(np.ones((20, 20))), np.ones((20, 20)))
    for option in ("noise=5", "missing=0.5", "run=x", "clean=x.png", "states.memmap=true"):
        with pytest.raises(ValueError, match=f"{option.split('=')[0]}.*has no meaning"):
            tvae.denoise(CLEAN, overrides=option)


def test_missing_pixels_as_nan_and_as_a_mask_are_the_same():
    missing = drop_pixels(CLEAN.shape, 0.4, seed=1)
    image = CLEAN.astype(np.float32) / 255
    by_mask, uncertainty = api.inpaint(image, missing, overrides=FAST, return_uncertainty=True)
    with_nan = np.where(missing, np.nan, image)
    by_nan = api.inpaint(with_nan, np.zeros(CLEAN.shape), overrides=FAST)
    assert np.array_equal(by_mask, by_nan)
    assert np.array_equal(by_mask[~missing], image[~missing])
    assert (uncertainty[~missing] == 0).all()
    assert (uncertainty[missing] > 0).mean() > 0.99  # a pixel of one patch with one state has none


def test_a_region_without_any_known_pixel_gets_a_result_and_a_warning(caplog):
    missing = np.zeros(CLEAN.shape, bool)
    missing[10:26, 10:26] = True
    with caplog.at_level("WARNING"):
        filled = api.inpaint(CLEAN / 255.0, missing, overrides=[*FAST, "epochs=4"])
    assert np.isfinite(filled).all()
    assert "patches have no known pixel" in caplog.text


def test_larger_uncertainty_goes_with_larger_error():
    restored, uncertainty = api.denoise(NOISY, overrides=FAST, return_uncertainty=True)
    correlation = spearmanr(uncertainty.ravel(), np.abs(restored - CLEAN).ravel()).statistic
    assert correlation > 0.2
