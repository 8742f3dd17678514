"""Documents name tests that show what they promise: each is there, and is a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def named_in(document):
    return sorted({*re.findall(r"\btests/[\w/]+\.py\b", document.read_text("utf-8"))})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_named_tests_exist(document):
    for name in named_in(document):
        assert (ROOT / name).is_file(), f"{document.name} names {name}"
        if Path(name).name.startswith("test_"):
            assert re.search(r"^def test_", (ROOT / name).read_text("utf-8"), re.MULTILINE), name


def test_every_promise_names_a_test():
    table = (ROOT / "docs" / "promises.md").read_text("utf-8").partition("\n## ")[0]
    promises = [line for line in table.splitlines() if line.startswith("|")][2:]  # after its head
    assert len(promises) > 10
    for row in promises:
        assert "tests/" in row.split("|")[2], row
