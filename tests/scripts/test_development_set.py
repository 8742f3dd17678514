"""The development set, and the runs on it that are collected."""

import math

import numpy as np
import pytest
from skimage import data

from scripts.pictures import development_set
from scripts.pictures.development_set import HALF_OF, HALVES
from scripts.pictures.runs import Case, arrays_of, calibrate, collect_runs
from tests.composing import checked
from tests.made_up_pictures import MISSING, NOISE, make_run, psnr_of, set_times
from tvae.config.recipe import prepare
from tvae.io.image_file import read_image, write_image


def test_the_set_has_two_halves_of_eight_grey_pictures_and_of_six_in_colour():
    assert [len(pictures) for pictures in HALVES.values()] == [8, 8, 6, 6]
    assert len(HALF_OF) == 28  # none is in both
    for name in HALF_OF:
        if name not in ("house", "barbara", "colour_castle"):  # which may have to be downloaded
            pixels = HALVES[HALF_OF[name]][name].read()
            assert pixels.shape == ((192, 192, 3) if name.startswith("colour") else (256, 256))
            assert np.array_equal(pixels, np.rint(pixels))
            assert pixels.min() >= 0
            assert pixels.max() <= 255
            assert pixels.std() > 10


def test_crops_are_those_of_the_pictures_in_scikit_image():
    camera = data.camera().astype(float)
    means = (camera[::2, ::2] + camera[1::2, ::2] + camera[::2, 1::2] + camera[1::2, 1::2]) / 4
    assert np.array_equal(HALVES["A"]["camera"].read(), np.rint(means))
    text = data.text()
    assert np.array_equal(HALVES["A"]["text"].read(), np.vstack([text[20:148, :256], text[20:148, 190:446]]))
    coffee = data.coffee()[80:336, 180:436] @ np.array([0.2125, 0.7154, 0.0721])
    assert np.array_equal(HALVES["B"]["coffee"].read(), np.rint(coffee))
    assert np.array_equal(HALVES["colour-B"]["colour_coffee"].read(), data.coffee()[100:292, 180:372])
    astronaut = data.astronaut().astype(float)[:384, 80:464].reshape(192, 2, 192, 2, 3).mean((1, 3))
    assert np.array_equal(HALVES["colour-B"]["colour_astronaut"].read(), np.rint(astronaut))


def test_a_package_that_is_not_installed_is_said(tmp_path, monkeypatch, capsys):
    elsewhere = development_set.coloured("no_such_package:picture.jpg", 0, 0)
    monkeypatch.setitem(HALVES, "colour-A", {"elsewhere": elsewhere, "wheel": HALVES["colour-A"]["colour_wheel"]})
    development_set.main(["colour-A", str(tmp_path)])
    said = capsys.readouterr()
    assert said.out == "wheel.png\n"
    assert "left out: elsewhere: no_such_package:picture.jpg: no_such_package is not installed" in said.err


def test_pictures_are_written_once(tmp_path, own_cache, capsys):
    place = tmp_path / "clean"
    place.mkdir()
    write_image(place / "astronaut.png", np.zeros((2, 2), np.uint8))
    development_set.main(["B", str(place)])
    said = capsys.readouterr()
    assert said.out == "astronaut.png,coffee.png,gravel.png,page.png,ihc.png,retina.png,rocket.png\n"
    assert "left out: barbara: barbara.png: cannot be downloaded" in said.err
    assert read_image(place / "astronaut.png").pixels.shape == (2, 2, 1)  # was there, and is left alone
    written = read_image(place / "page.png")
    assert written.dtype == np.uint8
    assert np.array_equal(written.pixels[..., 0], HALVES["B"]["page"].read())
    assert not list(place.glob(".*"))
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    development_set.main(["B", str(place)])
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before


@pytest.mark.parametrize("corruption", [NOISE, MISSING], ids=str)
def test_other_systems_see_the_arrays_of_our_runs(folder, corruption):
    image = folder / "clean" / "coffee.png"
    _, dataset = prepare(checked(f"image={image}", str(corruption), "corruption_seed=2", "dataset.patch_size=8"))
    arrays = arrays_of(Case("coffee", corruption, 2), folder / "clean")
    assert np.array_equal(arrays.corrupted, dataset.picture.noisy)
    assert np.array_equal(arrays.clean, dataset.picture.clean)
    if corruption.kind == "missing":
        assert np.array_equal(arrays.missing, dataset.picture.missing)


def test_finished_runs_are_collected_and_others_left_out(folder, capsys):
    good = make_run(folder, "coffee", NOISE, 1, "best")
    make_run(folder, "page", NOISE, 0, status="interrupted")
    torn = make_run(folder, "page", NOISE, 1)
    (torn / "metrics.json").write_text("{")
    again = make_run(folder, "coffee", NOISE, 1, "best", name="once_more")
    other = make_run(folder, "house", NOISE, 0)
    write_image(other / "input.png", np.zeros((24, 24), np.uint8))
    foreign = make_run(folder, "house", MISSING, 0)
    text = (foreign / "config.yaml").read_text()
    (foreign / "config.yaml").write_text(text.replace("elsewhere/house.png", "holiday.png"))
    (run,) = collect_runs(folder)
    assert (run.directory, run.case, run.effort) == (good, Case("coffee", NOISE, 1), "best")
    assert run.psnr == psnr_of(good)
    said = capsys.readouterr().err
    assert f"left out: {torn}/metrics.json: cannot be read" in said
    assert f"left out: {again}: the same as {good}" in said
    assert f"left out: {other}: not of the picture that is in the development set now" in said
    assert f"left out: {foreign}: not of a picture of the development set" in said
    assert len(said.splitlines()) == 4  # the unfinished one is no mistake


def test_calibration_agrees_with_a_computation_pixel_by_pixel(folder):
    path = make_run(folder, "coffee", MISSING, 3)
    clean, _, missing = arrays_of(Case("coffee", MISSING, 3), folder / "clean")
    restored, stated = (read_image(path / name).pixels for name in ("restored.png", "uncertainty.tiff"))
    places = np.argwhere(missing)
    pairs = sorted((float(stated[i, j, 0]), float(restored[i, j, 0] - clean[i, j, 0])) for i, j in places)
    assert len(pairs) == 288  # half of the pixels: the known ones say nothing
    (run,) = collect_runs(folder)
    for part, ratio in enumerate(run.calibration.ratios):
        eighth = pairs[36 * part : 36 * (part + 1)]
        found = math.sqrt(sum(error**2 for _, error in eighth) / sum(deviation**2 for deviation, _ in eighth))
        assert ratio == pytest.approx(found)
    covered = sum(abs(error) <= 2 * deviation for deviation, error in pairs)
    assert run.calibration.coverage == pytest.approx(covered / 288)


def test_calibration_of_gaussian_errors():
    rng = np.random.default_rng(0)
    stated = rng.uniform(1, 10, 200_000)
    errors = stated * rng.normal(size=200_000)
    assert calibrate(errors, stated).ratios == pytest.approx([1.0] * 8, abs=0.02)
    assert calibrate(errors, stated).coverage == pytest.approx(math.erf(math.sqrt(2)), abs=0.002)
    assert calibrate(2 * errors, stated).ratios == pytest.approx([2.0] * 8, abs=0.04)
    assert calibrate(np.ones(16), np.zeros(16)).ratios == (math.inf,) * 8


def test_seconds_are_of_the_whole_run_where_they_can_be_known(folder):
    whole, resumed, copied = (make_run(folder, "coffee", NOISE, seed) for seed in range(3))
    (resumed / "tensorboard" / "events.out.tfevents.9.host.name.88.0").touch()  # by another process
    set_times(copied, 0.0)
    found = {run.directory: (run.seconds, run.is_whole) for run in collect_runs(folder)}
    assert found == {whole: (100.0, True), resumed: (50.0, False), copied: (50.0, False)}
