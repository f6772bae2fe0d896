"""The doors of the library: modules without an underscore, which only export. Everything else lies below `_src`."""

import ast
import importlib
import inspect
import pickle
import sys
import traceback
import types
import typing
from pathlib import Path

import pytest

import bushel
from bushel._src.base.public import find_module

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "src" / "bushel"
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
public_names = importlib.import_module("public_names")

FILES = [path for path in sorted(LIBRARY.rglob("*.py")) if "_src" not in path.parts and path.name != "__main__.py"]
CALLABLE = {"view.py": "_CallableModule"}
"""`bushel.view` is a module and a function."""


def name_of(file: Path) -> str:
    parts = file.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


DOORS = [name_of(file) for file in FILES]


def test_each_door_is_in_the_reference_and_the_other_way_round():
    assert sorted(DOORS) == sorted(public_names.MODULES)


@pytest.mark.parametrize("file", FILES, ids=DOORS)
def test_a_door_only_exports(file):
    """It defines nothing but constants, and imports from the private code and from other doors."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            assert getattr(node, "name", None) == CALLABLE.get(file.name), f"{file}:{node.lineno}"
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert module in {"typing", *DOORS} or module.startswith("bushel._src."), f"{file}:{node.lineno}"


@pytest.mark.parametrize("door", DOORS)
def test_what_a_door_offers_is_in_the_reference(door):
    """No name without an underscore is there beside the documented ones, once the module has been imported."""
    offered = {name for name in dir(importlib.import_module(door)) if not name.startswith("_")}
    documented = {name.name for name in public_names.names_of(door)}
    modules = {name.rpartition(".")[2] for name in DOORS if name.rpartition(".")[0] == door}
    assert offered <= documented | modules
    assert documented <= set(dir(importlib.import_module(door)))


def objects() -> list[typing.Any]:
    """Every public class and function of ours, once."""
    named = {id(name.value): name for name in public_names.all_names() if name.kind != "module"}
    ours = (types.FunctionType, type)
    return [name for name in named.values() if isinstance(name.value, ours) and name.value.__module__ != "builtins"]


@pytest.mark.parametrize("name", objects(), ids=lambda name: name.full)
def test_a_public_class_or_function_says_its_door(name):
    """In reprs, tracebacks and pickles: users see the address that they can import."""
    value = name.value
    assert value.__module__ in DOORS, f"{name.full} shows {value.__module__}. Write @public({name.module!r}) above it."
    found = importlib.import_module(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part)
    assert found is value
    assert b"_src" not in pickle.dumps(value) and pickle.loads(pickle.dumps(value)) is value
    assert find_module(value).startswith("bushel._src."), "its door only exports it"


@pytest.mark.parametrize(
    "name", [name for name in objects() if inspect.isclass(name.value)], ids=lambda name: name.full
)
def test_the_annotations_of_a_public_class_can_be_read(name):
    """Libraries of command lines and configurations do it. They look names up in the module that a class shows."""
    try:
        hints = typing.get_type_hints(name.value)
    except NameError as error:  # a name that only type checkers import: no program can read it
        module = inspect.getsource(sys.modules[find_module(name.value)])
        assert f"import {error.name}" in module.partition("if TYPE_CHECKING:")[2].replace("(\n", "")
    else:
        assert not any(isinstance(hint, str) for hint in hints.values())


def test_an_error_shows_its_public_address_in_a_traceback():
    error = bushel.StateMismatch("the state is of another pipeline")
    assert traceback.format_exception_only(error)[-1].startswith("bushel.StateMismatch: ")
