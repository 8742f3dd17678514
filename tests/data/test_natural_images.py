"""Files of natural images, and those that come with scikit-image."""

import numpy as np
import pytest

from tests.conftest import smooth_picture
from tvae.data import natural_images
from tvae.data.natural_images import EMBEDDED, embedded, read_file, vanhateren
from tvae.errors import UserError
from tvae.io.image_file import write_image, write_tiff

pytestmark = pytest.mark.usefixtures("own_cache")


def test_raw_files_are_big_endian_and_row_by_row(tmp_path):
    expected = np.arange(1024 * 1536, dtype=np.uint16).reshape(1024, 1536)
    (tmp_path / "imk00001.iml").write_bytes(b"".join(int(v).to_bytes(2, "big") for v in expected.flat))
    assert np.array_equal(read_file(tmp_path / "imk00001.iml"), expected)


def test_a_raw_file_of_another_length_is_named(tmp_path):
    (tmp_path / "a.iml").write_bytes(b"12345")
    with pytest.raises(UserError, match=r"a\.iml: 5 bytes, but a van Hateren image, 1536x1024 of 2 bytes, has 3145728"):
        read_file(tmp_path / "a.iml")


def test_colours_are_averaged(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (8, 9, 3), dtype=np.uint8)
    write_image(tmp_path / "a.png", pixels)
    assert np.allclose(read_file(tmp_path / "a.png"), pixels.mean(-1))


def test_nan_is_refused(tmp_path):
    pixels = smooth_picture(0).astype(np.float32)
    pixels[3, 3] = np.nan
    write_tiff(tmp_path / "a.tiff", pixels)
    with pytest.raises(UserError, match="NaN"):
        read_file(tmp_path / "a.tiff")


def test_embedded_images_need_no_files():
    names = [s.name for s in embedded(None)]
    assert names == list(EMBEDDED)
    for s in embedded(None):
        pixels = s.read()
        assert pixels.ndim == 2
        assert pixels.std() > 10


@pytest.mark.parametrize("images", [["../secret.iml"], ["/etc/passwd"], ["a.txt"]])
def test_only_names_of_images_are_fetched(images, folder):
    with pytest.raises(UserError, match="must be the name of an image file"):
        vanhateren(images, str(folder))


def test_chosen_images(folder, monkeypatch):
    read = []
    monkeypatch.setattr(natural_images, "read_file", lambda path: (read.append(path.name), smooth_picture(0))[1])
    for image in vanhateren(["2.tiff", "0.tiff"], str(folder)):
        image.read()
    assert read == ["2.tiff", "0.tiff"]
