"""Python files and modules that a target names: runs a file once, and finds the dataset in it.

A file is run as `python train.py` runs it, except that code under `if __name__ == "__main__":` is not. What the file
defines is sent to workers by value, as what `__main__` defines is, so that no worker runs the file again. Processes
that a script starts itself with `multiprocessing` get it by value too: they could not import the module of the script.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.machinery
import inspect
import os
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle

from bushel._src.base import checks, redact, shown_text
from bushel._src.base.background import SCRIPT_MODULE
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.loaders.data_loader import DataLoader
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset
from bushel._src.trajectory.trajectory_loader import TrajectoryLoader

_SECRET_OPTION = re.compile(
    r"token|secret|passw|credential|signature|(?:api|access|account|private)[_-]?key", re.IGNORECASE
)
is_program = False
"""Whether this process is the command `bushel`. Elsewhere `__main__` belongs to somebody else, such as a notebook."""

_DATASETS = (MapDataset, IterDataset, DataLoader, DatasetIterator, TrajectoryDataset, TrajectoryLoader, EpisodeBuilder)


def is_script(target: str) -> bool:
    """Return whether a target is a Python file, without the name of something in it."""
    return target.endswith(".py") and "://" not in target


def is_python_target(target: str) -> bool:
    """Return whether a target names a Python object: `train.py:make_dataset`, `module:name`."""
    place, colon, name = target.rpartition(":")
    parts = name.split(".")
    return (
        bool(colon and place)
        and all(map(str.isidentifier, parts))
        and "://" not in target
        and not os.path.exists(target)
    )


def show_target(target: str, arguments: Sequence[str] = ()) -> str:
    """Return a target and the arguments of its script, for people and without secrets: "train.py:ds -- --batch 8"."""
    shown = redact.show(target)
    return f"{shown} -- {_show_arguments(arguments)}" if arguments else shown


def _show_arguments(arguments: Sequence[str]) -> str:
    """Return the arguments of a script as a shell takes them, without secrets: in URLs, and in options such as
    --api-key.
    """
    shown, hides_next = [], False
    for word in arguments:
        name, equals, value = word.partition("=")
        is_secret = name.startswith("-") and _SECRET_OPTION.search(name) is not None
        if hides_next and not word.startswith("-"):
            shown.append(redact.HIDDEN)
        elif is_secret and equals:
            shown.append(f"{name}={redact.HIDDEN}")
        else:
            shown.append(f"{name}={redact.show(value)}" if equals and name.startswith("-") else redact.show(word))
        hides_next = is_secret and not equals
    return shlex.join(shown)


def load_object(target: str, arguments: Sequence[str] = ()) -> Any:
    """Return the object that `train.py:make_dataset` or `module:name` names. A function is called, without arguments.

    Args:
      target: the target.
      arguments: what the file or module finds in `sys.argv`, behind its own name.
    """
    place, _, name = target.rpartition(":")
    with _set_arguments(place, arguments):
        module = run_script(place, target, arguments) if place.endswith(".py") else _import_module(place)
        value: Any = module
        for part in name.split("."):
            if not hasattr(value, part):
                if isinstance(value, types.ModuleType) and part in _find_guarded_names(value):
                    raise ValueError(
                        f'{place} defines {part!r} only under `if __name__ == "__main__":`, which does not run here. '
                        "Define it above, or in a function."
                    )
                raise ValueError(f"{place} has no {name!r}. {_suggest(part, value)}")
            value = getattr(value, part)
        is_source = isinstance(value, _DATASETS) or (hasattr(value, "__getitem__") and not isinstance(value, type))
        if callable(value) and not is_source:
            _check_no_arguments(target, value)
            value = _call(value, target, arguments)
            if value is None:
                raise ValueError(f"{target} returned None. Let the function return the dataset: forgot `return`?")
    return value


def run_script(path: str, target: str, arguments: Sequence[str] = ()) -> types.ModuleType:
    """Run a Python file, once, and return what it defines as a module.

    `__name__` is not "__main__" there, so guarded code does not run. The name belongs to no file: an import of it fails
    in a worker. Under the name of the file, a worker that looks for a class would import the file and run it again.

    In the command `bushel`, the module also takes the place of `__main__`, as under `python train.py`. Objects that an
    earlier run of the script has pickled find their classes there.
    """
    file = Path(path).resolve()
    if not file.is_file():
        near = [each.name for each in file.parent.glob("*.py")] if file.parent.is_dir() else []
        close = difflib.get_close_matches(file.name, near, 1)
        suggested = f" Did you mean {os.path.join(os.path.dirname(path), close[0])}?" if close else ""
        raise FileNotFoundError(f"{path} does not exist.{suggested}")
    if sys.path[:1] != [str(file.parent)]:
        sys.path.insert(0, str(file.parent))
    module = types.ModuleType(_choose_name(str(file)))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    send_scripts_by_value()
    if is_program:
        # Processes that the script starts with `multiprocessing` would run the file of `__main__` again. This spec says
        # that they have nothing to run.
        module.__spec__ = importlib.machinery.ModuleSpec("__main__", None)
        sys.modules["__main__"] = module
    code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    try:
        _call(lambda: exec(code, module.__dict__), target, arguments)
    except ImportError as error:
        if "attempted relative import" in str(error):
            error.add_note(
                f"A script has no package, as under `python {shlex.quote(path)}`. Go to {file.parent.parent} and name "
                f"the module: {file.parent.name}.{file.stem}:make_dataset"
            )
        raise
    return module


def list_script(path: str, command: str, arguments: Sequence[str] = ()) -> str:
    """Run a Python file and say which datasets and functions in it a target may name.

    Args:
      path: the file.
      command: the command that the user ran, such as "view": the answer shows how to name one of them.
      arguments: what the file finds in `sys.argv`, behind its own name.
    """
    with _set_arguments(path, arguments):
        module = run_script(path, path, arguments)
    datasets, functions = _find_datasets(module), _find_functions(module)
    usable = [*datasets, *(name for name, function in functions.items() if not _list_required(function))]
    if not usable:
        needing = f" Its functions need arguments: {', '.join(functions)}." if functions else ""
        return (
            f"{path} defines no dataset, and no function that can be called without arguments.{needing} Write a "
            "function that returns the dataset."
        )
    rows = [(name, _describe_dataset(value)) for name, value in datasets.items()]
    rows += [
        (f"{name}{inspect.signature(function)}", _describe_function(function)) for name, function in functions.items()
    ]
    more = f" -- {_show_arguments(arguments)}" if arguments else ""
    return (
        f"{show_target(path, arguments)} has these datasets and functions:\n\n"
        f"{shown_text.as_text(('name', 'what it is'), rows, left=2)}\n\n"
        f"Name one: bushel {command} {shlex.quote(f'{path}:{usable[0]}')}{more}"
    )


@contextlib.contextmanager
def _set_arguments(place: str, arguments: Sequence[str]) -> Iterator[None]:
    """A block in which `sys.argv` is that of a script, or of a module."""
    before = sys.argv
    sys.argv = [place, *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _call(function: Callable[[], Any], target: str, arguments: Sequence[str]) -> Any:
    """Call code of a user's file. If the code ends the program, the error says so, and how to pass arguments."""
    try:
        return function()
    except SystemExit as end:
        if isinstance(end.code, str):  # a text of the user's own, which is shown with the line that it is from
            raise
        place = target.rpartition(":")[0] or target
        way_out = (
            f"Its arguments were {_show_arguments(arguments)}."
            if arguments
            else f"If it needs arguments, pass them behind two dashes: {shlex.quote(target)} -- --batch 8"
        )
        raise ValueError(
            f"{place} ended the program itself (exit code {end.code or 0}), so there is no dataset. {way_out}"
        ) from None


def _choose_name(file: str) -> str:
    """Return the name of the module of a file. A second file of one process gets a name of its own."""
    number, name = 1, SCRIPT_MODULE
    while name in sys.modules and sys.modules[name].__file__ != file:
        number, name = number + 1, f"{SCRIPT_MODULE}{number + 1}"
    return name


def _import_module(name: str) -> types.ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # an import inside the module
        raise ModuleNotFoundError(
            f"No module named {error.name!r}: it is neither in {os.getcwd()} nor installed. Of a file, name the path: "
            f"path/to/{name.rpartition('.')[2]}.py:make_dataset",
            name=error.name,
        ) from None


def _suggest(name: str, owner: Any) -> str:
    """Return what the user may have meant with a name that an object does not have."""
    if isinstance(owner, types.ModuleType):
        names = [*_find_datasets(owner), *_find_functions(owner)]
        others = [each for each in vars(owner) if not each.startswith("_") and each not in names]
    else:
        names, others = [], [each for each in dir(owner) if not each.startswith("_")]
    if close := difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(name, others, 1):
        return f"Did you mean {close[0]!r}?"
    return f"It has {', '.join(names)}." if names else "It defines no dataset and no function."


def _find_guarded_names(module: types.ModuleType) -> set[str]:
    """Return the names that a file defines under `if __name__ == "__main__":`, which is not true here."""
    try:
        tree = ast.parse(Path(module.__file__ or "").read_bytes())
    except (OSError, SyntaxError, ValueError):  # a module without Python source
        return set()
    guarded = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.dump(node.test)]
    nodes = [node for guard in guarded for statement in guard.body for node in ast.walk(statement)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _find_datasets(module: types.ModuleType) -> dict[str, Any]:
    """Return the datasets, loaders and sources of Bushel's among the globals of a module."""
    found = {}
    for name, value in vars(module).items():
        of_ours = type(value).__module__.partition(".")[0] == "bushel" and hasattr(value, "__getitem__")
        if not name.startswith("_") and (isinstance(value, _DATASETS) or of_ours):
            found[name] = value
    return found


def _find_functions(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """Return the functions that a module defines itself, without those that it imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def _list_required(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function without which it cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables do not say it
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _check_no_arguments(target: str, function: Callable[..., Any]) -> None:
    if required := _list_required(function):
        raise ValueError(
            f"{target} cannot be called without arguments: it needs {', '.join(required)}. Give the parameters "
            "defaults, or name a function without parameters that calls it."
        )


def _describe_dataset(value: Any) -> str:
    kinds = (MapDataset, IterDataset)
    name = next((kind.__name__ for kind in kinds if isinstance(value, kind)), type(value).__name__)
    if not isinstance(value, MapDataset):
        return name
    length = len(value)
    return f"{name}, endless" if checks.is_endless(length) else f"{name}, {length:,} elements"


def _describe_function(function: types.FunctionType) -> str:
    required = _list_required(function)
    line = function.__code__.co_firstlineno
    return f"function, line {line}" + (f", needs {', '.join(required)}" if required else "")


def send_scripts_by_value() -> None:
    """Make `multiprocessing` in this process send functions and classes of scripts by value, and nothing else."""
    ForkingPickler.reducer_override = _reduce


def _reduce(_: ForkingPickler, value: Any) -> Any:
    """Return how `multiprocessing` pickles an object: its own way, except for what a script defines."""
    defined = isinstance(value, (type, types.FunctionType))
    if defined and str(getattr(value, "__module__", "")).startswith(SCRIPT_MODULE):
        return _load, (cloudpickle.dumps(value),)
    return NotImplemented


def _load(data: bytes) -> Any:
    """Return the function or class that was sent. From now on this process sends those of the script by value, too."""
    send_scripts_by_value()
    return cloudpickle.loads(data)
