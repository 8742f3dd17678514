"""The plan of the package: which room may import from which.

Rooms are the folders under `tvae/`; modules beside them may import anything. `tvae` itself is the package's version.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

import tvae

PACKAGE = Path(tvae.__file__).parent
BASE = {"errors", "fields"}
ALL = {"model", "inference", "training", "backends", "io", "noise", "data", "config", "restoration"}
PLAN = {
    "model": {"model"},
    "inference": {"model", "inference"},
    "training": {"model", "inference", "training"},
    "backends": {"model", "inference", "training", "backends"},
    "io": {"io"},
    "noise": {"model", "inference", "training", "backends", "data", "io", "noise"},
    "data": {"model", "inference", "training", "io", "noise", "data"},
    "config": {"model", "inference", "training", "data", "io", "noise", "config"},
    "restoration": ALL,
    "runs": {*ALL, "runs", "starting", "tvae"},
    "search": {*ALL, "runs", "search", "starting", "tvae"},
}
COMPOSITION = {"hydra", "omegaconf"}
PROCESSES = {"multiprocessing", "os", "pathlib", "subprocess"}
FOREIGN = {
    **dict.fromkeys(("model", "inference", "training"), COMPOSITION | PROCESSES),
    **dict.fromkeys(("backends", "io", "noise", "data", "restoration"), COMPOSITION),
}
# Imports of `tvae.api` on demand, so that `tvae.denoise(image)` works in notebooks.
HIDDEN = {("tvae", "TYPE_CHECKING"), ("tvae", "__getattr__"), ("tvae.runs.command", "__call__")}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


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
        if is_own(target) and room(target) not in PLAN[name] | BASE and (module, where) not in HIDDEN
    ]
    assert wrong == []


@pytest.mark.parametrize("name", FOREIGN)
def test_rooms_know_nothing_of_composition_and_the_model_nothing_of_files_and_processes(name):
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
