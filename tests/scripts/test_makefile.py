"""Commands in the Makefile and in the documents name scripts that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
TEXTS = [*DOCUMENTS, *(ROOT / "scripts").rglob("*.py")]


def path_of(module):
    return ROOT / f"{module.replace('.', '/')}.py"


def test_every_module_of_the_makefile_is_there_and_can_be_run():
    modules = set(re.findall(r"-m (scripts[.\w]+)", (ROOT / "Makefile").read_text()))
    assert {module.split(".")[1] for module in modules} == {"bench", "fuzz", "paper", "pictures"}
    for module in modules:
        assert '\nif __name__ == "__main__":\n' in path_of(module).read_text(), module


@pytest.mark.parametrize("path", sorted(TEXTS), ids=lambda path: path.name)
def test_every_script_that_a_text_names_is_there(path):
    text = path.read_text()
    modules = re.findall(r"(?:-m |`|from )(scripts\.\w+\.\w+)", text)
    files = re.findall(r"(?<!/)\bscripts/[\w/]+\.py\b", text)
    named = [*map(path_of, modules), *(ROOT / file for file in files)]
    assert [each for each in named if not each.is_file()] == []
