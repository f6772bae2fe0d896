"""What a public function takes or returns can be imported from a public module, under the name that its repr shows."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, get_args, get_origin

import pytest
from helpers.signatures import constructors_of_results, public_functions, public_names, types_of

pytest.importorskip("jax")
pytest.importorskip("ray")

# Arguments whose types stay private, by the reason.
PRIVATE = {
    "only Bushel calls these constructors": (
        "bushel.Column.__init__ bushel.PackedMapDataset.__init__ bushel.view.View.__init__ "
        "bushel.trajectory.TrajectoryDataset.__init__ bushel.trajectory.TrajectoryLoader.__init__ "
        "bushel.trajectory.LeRobotFeature.__init__"
    ),
    "the engine's own types: docs/releases.md promises none of them": "bushel.engine.*",
    "it takes each of our sources of records": "bushel.sources.FixedRecords.__init__",
    "the records of readers that replace images by places": "bushel.trajectory.Episodes.of",
}


def is_structural(kind: type) -> bool:
    """Whether any object fits that has these methods or keys: nobody needs the name of such a type."""
    return typing.is_typeddict(kind) or getattr(kind, "_is_protocol", False)


def classes_of(kind: Any) -> Iterator[type]:
    """Our own classes in a type."""
    for found in (kind, get_origin(kind)):
        if isinstance(found, type) and found.__module__.split(".")[0] == "bushel" and not is_structural(found):
            yield found
    for part in get_args(kind):
        for inner in part if isinstance(part, list) else [part]:
            yield from classes_of(inner)


def signatures() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and methods, properties, and what iterating and indexing give."""
    yield from public_functions().items()
    yield from constructors_of_results().items()  # a field of a dataclass is an argument of its constructor
    for name in public_names.homes().values():
        if not inspect.isclass(name.value) or name.value.__module__.split(".")[0] != "bushel":
            continue
        for attribute in dir(name.value):
            raw = inspect.getattr_static(name.value, attribute)
            function = getattr(raw, "fget", None) or getattr(raw, "func", None)
            if attribute in ("__iter__", "__next__", "__getitem__"):
                function = raw
            elif attribute.startswith("_"):
                continue
            if inspect.isfunction(function) and function.__module__.startswith("bushel"):
                yield f"{name.full}.{attribute}", function


def exported() -> set[int]:
    return {id(name.value) for name in public_names.all_names()}


def test_types_of_arguments_and_results_are_public():
    public = exported()
    allowed = [pattern for patterns in PRIVATE.values() for pattern in patterns.split()]
    found: dict[str, list[str]] = {}
    used: set[str] = set()
    for name, function in signatures():
        for argument, kind in types_of(function).items():
            for each in classes_of(kind):
                if id(each) in public:
                    continue
                if patterns := [pattern for pattern in allowed if fnmatchcase(name, pattern)]:
                    used.update(patterns)
                    continue
                found.setdefault(f"{each.__module__}.{each.__qualname__}", []).append(f"{name}({argument})")
    assert not found
    assert used == set(allowed), "no longer needed in PRIVATE"


def test_a_private_class_is_found():
    class Hidden:
        pass

    Hidden.__module__ = "bushel.somewhere"

    for kind in (Hidden | None, dict[str, Hidden], Callable[[Hidden], int], list[list[Hidden]]):
        assert list(classes_of(kind)) == [Hidden]
    assert not list(classes_of(dict[str, int] | None))
    assert id(Hidden) not in exported()
