"""Values of configurations as plain data, and errors for names that are misspelt."""

from __future__ import annotations

import difflib
import enum
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bushel._src.trajectory.module_spec import ModuleSpec

P = ParamSpec("P")
R = TypeVar("R")


def make_plain(value: Any) -> Any:
    """A value with only dicts, tuples, texts and numbers of Python in it. Functions and other objects stay.

    An object with `items` and `to_dict`, such as a `ConfigDict`, becomes a dict.

    >>> make_plain({"size": [64, np.int64(64)], "mean": np.zeros(2)})
    {'size': (64, 64), 'mean': (0.0, 0.0)}
    """
    if isinstance(value, Mapping) or _is_config(value):
        return {key: make_plain(entry) for key, entry in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return make_plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return tuple(make_plain(entry) for entry in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def accept_configs(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that expects dicts, so that its arguments may be or contain a `ConfigDict`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        plain_function: Callable[..., R] = function
        named = {name: _replace_configs(value) for name, value in kwargs.items()}
        return plain_function(*map(_replace_configs, args), **named)

    return call


def _replace_configs(value: Any) -> Any:
    """The same value with a dict instead of each `ConfigDict` in it. Everything else stays as it is."""
    if isinstance(value, Mapping) or _is_config(value):
        return {key: _replace_configs(entry) for key, entry in value.items()}
    return type(value)(map(_replace_configs, value)) if type(value) in (list, tuple) else value


def _is_config(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "to_dict", None)) and hasattr(value, "items")


def as_mapping(value: Any, what: str) -> Mapping[str, Any]:
    """A value as a mapping: a dict, or an object such as a `ConfigDict`. Others raise TypeError, which names `what`.

    >>> as_mapping({"seed": 1}, "A config")
    {'seed': 1}
    """
    if isinstance(value, Mapping):
        return value
    if _is_config(value):
        return value.to_dict()
    raise TypeError(f"{what} must be a dict, got {type(value).__name__}.")


def to_json(value: Any, where: str) -> Any:
    """A value as JSON can hold it. A function becomes the spec that names it. `where` is its name in messages.

    >>> to_json({"filter": functools.partial(max, 3)}, "filters")["filter"]
    {'module': 'builtins', 'name': 'max', 'args': [3], 'kwargs': {}}
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}, but the keys in a file must be texts.")
        return {key: to_json(entry, f"{where}/{key}") for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry, where) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, enum.Enum) else value
    if not callable(value):
        raise ValueError(f"{where} holds {value!r} of type {type(value).__name__}, which cannot be written to a file.")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(value, functools.partial):
        args, kwargs, value = (*value.args, *args), {**value.keywords, **kwargs}, value.func
    try:
        spec = ModuleSpec.create(value)
        target = ModuleSpec.instantiate(spec).func
    except ValueError as error:
        raise ValueError(f"{where} cannot be written to a file: {error}") from error
    if target is not value:
        raise ValueError(
            f"{where} cannot be written to a file: {ModuleSpec.to_string(spec)[:-2]} is the name of another object "
            f"than {value!r}. Define it at the top of a module."
        )
    return {**spec, "args": to_json(args, where), "kwargs": to_json(kwargs, where)}


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str, kind: str = "field") -> None:
    """Raises ValueError for a name that is not known, with the nearest known name.

    >>> refuse_unknown(["windowsize"], ["window_size", "seed"], "A config")
    Traceback (most recent call last):
    ...
    ValueError: A config has no field 'windowsize'. Did you mean 'window_size'?
    """
    names = list(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1, 0.5)
            way = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names)}."
            raise ValueError(f"{what} has no {kind} {name!r}. {way}")
