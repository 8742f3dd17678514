"""Files that are written whole: what is replaced, and what is not."""

import os
import threading
from pathlib import Path

import pytest

from tests.tiny import TINY, tiny_picture
from tvae.errors import UserError
from tvae.io import atomic
from tvae.io.atomic import atomic_file, check_writable, remove_temporary, write_atomically
from tvae.io.image_file import write_image


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
        with pytest.raises(UserError, match="not a regular file, so it is not overwritten"):
            write_atomically(other, b"content")
    assert folder.is_dir()
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link", "pipe"]


FOREIGN = (".a.png.partial", ".results.partial", "a.png.partial", ".tvae-notes.partial")


def test_files_of_others_stay(tmp_path):
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"mine")
    write_atomically(tmp_path / "a.png", b"content")
    for name in ("a.png", "results"):
        check_writable(tmp_path, name, "output")
    remove_temporary(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in FOREIGN} == dict.fromkeys(FOREIGN, b"mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FOREIGN, "a.png"])


def test_what_is_being_written_stays_and_what_was_left_over_goes(tmp_path):
    """A run may begin in the folder to which another process writes its output."""
    left = tmp_path / f".tvae-{'0' * 16}.partial"
    left.write_bytes(b"of a process that was killed")
    with atomic_file(tmp_path / "a") as file:
        file.write(b"half")
        remove_temporary(tmp_path)
        file.write(b" and half")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"half and half"


def test_a_name_that_is_taken_is_not_used(tmp_path, monkeypatch):
    """Nor is a link of that name followed."""
    mine = tmp_path / "mine"
    mine.write_bytes(b"dear to me")
    (tmp_path / ".tvae-0000.partial").symlink_to(mine)
    tokens = iter(["0000", "0001"])
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: next(tokens))
    write_atomically(tmp_path / "a.json", b"new")
    assert mine.read_bytes() == b"dear to me"
    assert (tmp_path / "a.json").read_bytes() == b"new"
    assert (tmp_path / ".tvae-0000.partial").is_symlink()


def test_two_writers_of_one_path(tmp_path):
    """Each writes half, then the other one does: what is there is of one of them."""
    path, both = tmp_path / "a", threading.Barrier(2, timeout=20)
    problems = []

    def write(letter):
        try:
            with atomic_file(path) as file:
                for _ in range(2):
                    file.write(letter * 1000)
                    file.flush()
                    both.wait()
        except Exception as error:
            problems.append(error)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"x", b"y")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    assert path.read_bytes() in (b"x" * 2000, b"y" * 2000)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_goes_with_the_next_run(command):
    write_image(Path("a.png"), tiny_picture())
    words = ["denoise", "a.png", "done.png", *TINY, "hydra.run.dir=run"]
    command.ok(*words)
    left = [Path("run/.tvae-0123456789abcdef.partial"), Path("run/figures/.tvae-0123456789abcdee.partial")]
    for file in left:
        file.write_bytes(b"half")
    Path(".done.png.partial").write_bytes(b"mine")
    command.ok(*words)
    assert not any(file.exists() for file in left)
    assert Path(".done.png.partial").read_bytes() == b"mine"
