"""The plan of the package: which room may import from which, and how large modules and functions may be.

Rooms are the folders under `tvae/`; modules beside them may import anything. `tvae` itself is the package's version.
"""

import ast
import statistics
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import tvae

PACKAGE = Path(tvae.__file__).parent
PLAN = {
    "core": {"core"},
    "engines": {"core", "engines"},
    "data": {"core", "data"},
    "restore": {"core", "data", "restore"},
    "options": {"core", "data", "options"},
    "run": {"core", "data", "engines", "options", "restore", "run", "starting", "tvae"},
    "study": {"core", "data", "engines", "options", "restore", "run", "study", "tvae"},
}
COMPOSITION = {"hydra", "omegaconf"}
PROCESSES = {"multiprocessing", "os", "pathlib", "subprocess"}
FOREIGN = {"core": COMPOSITION | PROCESSES, **dict.fromkeys(("engines", "data", "restore"), COMPOSITION)}
# Imports of `tvae.api` on demand, so that `tvae.denoise(image)` works in notebooks.
HIDDEN = {("tvae", "TYPE_CHECKING"), ("tvae", "__getattr__"), ("tvae.run.command", "__call__")}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MAX_LINES, MAX_FUNCTION, MAX_MEDIAN = 260, 45, 110


def _module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree(module):
    return ast.parse(PATHS[module].read_text())


def targets(module, node):
    """The full names that an import statement binds or reads; `from a import b` is `a.b` where that is a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"{module}: a relative import"
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in PATHS else node.module for name in names]


@cache
def all_imports(module):
    """(name, where) for each import of a module: in a function, for type checkers alone, or (None) for all."""
    found = []

    def walk(node, where):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                found.extend((name, where) for name in targets(module, child))
            elif isinstance(child, FUNCTION):
                walk(child, child.name)
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                walk(child, "TYPE_CHECKING")
            else:
                walk(child, where)

    walk(tree(module), None)
    return found


def imports(module):
    """The names that a module imports when it is itself imported."""
    return [name for name, where in all_imports(module) if where is None]


def room(module):
    """The folder of a module, or for one beside them its own name."""
    return module.split(".")[1] if "." in module else module


def is_own(name):
    return name.split(".")[0] == "tvae"


def test_every_folder_is_a_room_of_the_plan():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == PLAN.keys()


@pytest.mark.parametrize("name", PLAN)
def test_arrows_point_one_way(name):
    wrong = [
        f"{module} imports {target}"
        for module in PATHS
        if room(module) == name
        for target, where in all_imports(module)
        if is_own(target) and room(target) not in PLAN[name] and (module, where) not in HIDDEN
    ]
    assert wrong == []


@pytest.mark.parametrize("name", FOREIGN)
def test_rooms_know_nothing_of_composition_and_the_core_nothing_of_files_and_processes(name):
    wrong = [
        f"{module} imports {target}"
        for module in PATHS
        if room(module) == name
        for target, _ in all_imports(module)
        if target.split(".")[0] in FOREIGN[name]
    ]
    assert wrong == []


def test_no_import_cycle():
    """Modules are taken away as long as there are some that import none of those left; all of them go."""
    left = {module: {name for name in imports(module) if name in PATHS} for module in PATHS}
    while free := {module for module, needed in left.items() if not needed & left.keys()}:
        left = {module: needed for module, needed in left.items() if module not in free}
    assert left == {}


def test_no_import_is_hidden_in_a_function():
    hidden = {(module, where) for module in PATHS for name, where in all_imports(module) if where and is_own(name)}
    assert hidden == HIDDEN


def test_no_two_modules_of_the_same_name():
    stems = Counter(path.stem for path in PATHS.values() if path.name != "__init__.py")
    assert [stem for stem, count in stems.items() if count > 1] == []


def n_lines(module):
    return len(PATHS[module].read_text().splitlines())


def test_modules_are_short():
    long = {module: n_lines(module) for module in PATHS if n_lines(module) > MAX_LINES}
    assert long == {}
    assert statistics.median(n_lines(module) for module in PATHS if n_lines(module)) <= MAX_MEDIAN


def test_functions_are_short():
    long = [
        f"{module}.{node.name}"
        for module in PATHS
        for node in ast.walk(tree(module))
        if isinstance(node, FUNCTION) and node.end_lineno - node.lineno >= MAX_FUNCTION
    ]
    assert long == []
