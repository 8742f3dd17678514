"""Commands in the Makefile and in the documents name modules that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = re.compile(r"-m (scripts(?:\.\w+)+)")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {"bench", "fuzz", "paper", "pictures"}


def path_of(module):
    return ROOT / f"{module.replace('.', '/')}.py"


def test_every_module_of_the_makefile_is_there_and_can_be_run():
    modules = set(MODULE.findall((ROOT / "Makefile").read_text()))
    assert {module.split(".")[1] for module in modules} == FOLDERS
    for module in modules:
        assert '\nif __name__ == "__main__":\n' in path_of(module).read_text(), module


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *sorted((ROOT / "scripts").rglob("*.py"))], ids=lambda path: path.name
)
def test_every_script_that_a_text_names_is_there(document):
    text = document.read_text()
    named = [
        *map(path_of, re.findall(r"\bscripts(?:\.\w+)+", text)),
        *(ROOT / f for f in re.findall(r"scripts/[\w/]+\.py", text)),
    ]
    assert [path for path in named if not path.is_file()] == []


def test_scripts_are_in_four_folders():
    assert {path.name for path in (ROOT / "scripts").iterdir() if any(path.rglob("*.py"))} == FOLDERS
    assert not list((ROOT / "scripts").glob("*.py"))
