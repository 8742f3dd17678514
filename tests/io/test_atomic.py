"""Files that are written whole: what is replaced, and what is not."""

import os

import pytest

from tvae.errors import UserError
from tvae.io.atomic import write_atomically


def test_only_files_are_replaced(tmp_path):
    """A device or a pipe would be a file afterwards, for all who use it."""
    file, folder, pipe = tmp_path / "file", tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for _ in range(2):
        write_atomically(file, b"content")
        assert file.read_bytes() == b"content"
    for other in (folder, pipe, tmp_path / "link"):
        with pytest.raises(UserError, match="is no file, so it is not written over"):
            write_atomically(other, b"content")
    assert folder.is_dir()
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link", "pipe"]
