"""Named pictures: where they are looked for, and downloads that go well, wrong, or nowhere."""

import hashlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pooch
import pytest

from tvae.data import named
from tvae.data.named import NamedFile, camera, find_image, read_named
from tvae.errors import UserError
from tvae.io.image_file import read_image, write_image


@pytest.fixture
def picture(tmp_path, monkeypatch):
    """The content of a small file that passes for house.png, with nothing of this machine in the way."""
    write_image(tmp_path / "made.png", np.arange(64, dtype=np.uint8).reshape(8, 8))
    content = (tmp_path / "made.png").read_bytes()
    monkeypatch.setitem(named.NAMED_FILES, "house", NamedFile("house.png", hashlib.sha256(content).hexdigest()))
    monkeypatch.delenv("TVAE_DATA_DIR", raising=False)
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVAE_DATA_URL", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(named, "TIMEOUT", 5)
    return content


@pytest.fixture
def server(monkeypatch):
    """A web server: `files` maps a path to (status, content, announced length)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            status, content, length = self.server.files.get(self.path, (404, b"", 0))
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("TVAE_DATA_URL", f"http://127.0.0.1:{server.server_port}/base/")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def warnings():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.setLevel(logging.WARNING)
    named.log.addHandler(handler)
    yield lines
    named.log.removeHandler(handler)


def refused(tmp_path, **arguments):
    """The one line that a user sees; and the cache holds what it held before."""
    cache = tmp_path / "cache"
    before = {path.name: path.read_bytes() for path in cache.iterdir()} if cache.exists() else {}
    with pytest.raises(UserError) as caught:
        find_image("house", **arguments)
    after = {path.name: path.read_bytes() for path in cache.iterdir()} if cache.exists() else {}
    assert after == before
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def test_found_in_the_folder_given(tmp_path, picture, warnings, monkeypatch):
    for name in ("option", "environment"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "house.png").write_bytes(picture)
    monkeypatch.setenv("TVAE_DATA_DIR", str(tmp_path / "environment"))
    assert find_image("house") == tmp_path / "environment" / "house.png"
    assert find_image("house", str(tmp_path / "option")) == tmp_path / "option" / "house.png"
    assert not warnings


def test_another_picture_of_that_name_is_used_with_a_warning(tmp_path, picture, warnings):
    write_image(tmp_path / "house.png", np.zeros((5, 5), np.uint8))
    assert find_image("house", str(tmp_path)) == tmp_path / "house.png"
    (line,) = warnings
    assert "SHA-256 differs" in line
    assert str(tmp_path / "house.png") in line


def test_folder_that_does_not_exist(tmp_path, picture):
    assert refused(tmp_path, data_dir=str(tmp_path / "none")).endswith("none: no such folder")


def test_found_in_the_cache(tmp_path, picture):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "house.png").write_bytes(picture)
    assert find_image("house") == tmp_path / "cache" / "house.png"


@pytest.mark.parametrize("folder", named.FOLDERS)
def test_download(tmp_path, picture, server, folder):
    server.files[f"/base/{folder}/house.png"] = (200, picture, len(picture))
    path = find_image("house", str(tmp_path))
    assert path == tmp_path / "cache" / "house.png"
    assert path.read_bytes() == picture
    assert [file.name for file in path.parent.iterdir()] == ["house.png"]
    n_asked = len(server.asked)
    assert find_image("house") == path
    assert len(server.asked) == n_asked
    np.testing.assert_array_equal(read_named("house").pixels, read_image(tmp_path / "made.png").pixels)


def test_damaged_file_in_the_cache_is_replaced(tmp_path, picture, server):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "house.png").write_bytes(picture[:-5])
    server.files["/base/denoising/img/house.png"] = (200, picture, len(picture))
    assert find_image("house").read_bytes() == picture


@pytest.mark.parametrize(
    ("status", "content", "extra_length", "reason"),
    [
        (200, b"another file", 0, "the file there has another SHA-256"),
        (200, b"", 0, "the file there has another SHA-256"),
        (200, b"half", 100, "the transfer broke off"),
        (500, b"", 0, "HTTP 500"),
        (404, b"", 0, "not found"),
    ],
)
def test_download_that_fails(tmp_path, picture, server, status, content, extra_length, reason):
    for folder in named.FOLDERS:
        server.files[f"/base/{folder}/house.png"] = (status, content, len(content) + extra_length)
    line = refused(tmp_path)
    assert line.startswith("house.png: cannot be downloaded from http://127.0.0.1")
    assert f"({reason})" in line
    assert f"put it into {tmp_path / 'cache'}" in line


def test_truncated_content_is_no_picture(tmp_path, picture, server):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "house.png").write_bytes(b"old")
    server.files["/base/denoising/img/house.png"] = (200, picture[:40], len(picture))
    assert "the transfer broke off" in refused(tmp_path, data_dir=str(tmp_path))


def test_without_network(tmp_path, picture, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TVAE_DATA_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        line = refused(tmp_path, data_dir=str(tmp_path))
    assert "(no connection)" in line
    assert f"put it into {tmp_path}" in line


def test_cache_that_cannot_be_made(tmp_path, picture, server, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file") in refused(tmp_path)


def test_camera_needs_no_download(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a download was asked for")

    monkeypatch.setattr(pooch.Pooch, "fetch", refuse)
    monkeypatch.setattr(pooch, "retrieve", refuse)
    image = read_named("camera")
    assert image.pixels.shape == (256, 256, 1)
    assert (image.dtype, image.peak, image.is_2d) == (np.uint8, 255, True)
    np.testing.assert_array_equal(image.pixels, np.rint(image.pixels))
    assert 30 < image.pixels.std() < 100
    np.testing.assert_array_equal(image.pixels, camera().pixels)
