"""Values of configurations: functions and classes by name, plain data, and errors for names that are misspelt.

What a `ModuleSpec` names is imported when it is loaded. `mixture_config.py` says which names a file may use.
"""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bushel._src.base.public import public
from bushel._src.state.digest import whole_digest

SPEC_KEYS = frozenset({"module", "name", "args", "kwargs"})


@public("bushel.trajectory")
class ModuleSpec(dict[str, Any]):
    """A callable by name, with arguments for it: a dict of "module", "name", "args" and "kwargs".

    A plain dict with these keys, from a JSON file for example, does as well.

    >>> spec = ModuleSpec.create("math:pow", 2.0)
    >>> ModuleSpec.to_string(spec), ModuleSpec.instantiate(spec)(3.0)
    ('math:pow(2.0)', 8.0)
    """

    @staticmethod
    def create(callable_or_full_name: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> ModuleSpec:
        """Return the spec of a callable, which may be given as "module:name"."""
        if isinstance(callable_or_full_name, str):
            module, colon, name = callable_or_full_name.partition(":")
            if not (module and colon and name) or ":" in name:
                raise ValueError(f"A name must have the form 'module:name', got {callable_or_full_name!r}.")
        else:
            module, name = _find_names(callable_or_full_name)
        return ModuleSpec(module=module, name=name, args=args, kwargs=kwargs)

    @staticmethod
    def instantiate(spec: Mapping[str, Any]) -> functools.partial[Any]:
        """Return the callable with its arguments bound. It is not called yet."""
        if set(spec) != SPEC_KEYS:
            raise ValueError(
                f"A spec has the keys {sorted(SPEC_KEYS)}, got {sorted(spec)}. ModuleSpec.create makes one."
            )
        try:
            target: Any = importlib.import_module(spec["module"])
            for part in spec["name"].split("."):
                target = getattr(target, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{spec['module']}:{spec['name']} cannot be imported: {error}.") from error
        return functools.partial(target, *spec["args"], **spec["kwargs"])

    @staticmethod
    def to_string(spec: Mapping[str, Any]) -> str:
        """Return the spec as a call in source code. It is part of the name under which statistics are kept."""
        arguments = [str(arg) for arg in spec["args"]] + [f"{key}={value}" for key, value in spec["kwargs"].items()]
        return f"{spec['module']}:{spec['name']}({', '.join(arguments)})"


def _find_names(target: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name or "<" in name:
        raise ValueError(
            f"{target!r} cannot be imported by a name. Define it at the top of a module, or give 'module:name'."
        )
    return module, name


Function = Callable[..., Any] | Mapping[str, Any] | str
"""A callable, or what names one: a ModuleSpec, or "module:name"."""


def load_function(function: Function) -> Callable[..., Any]:
    """Return the callable itself, imported if it is given by name.

    >>> load_function("math:floor")(2.5)
    2
    """
    spec = _parse(function)
    return ModuleSpec.instantiate(spec) if isinstance(spec, Mapping) else spec


def list_functions(functions: Sequence[Function] | Function | None) -> tuple[Function, ...]:
    """Return functions as a tuple: an empty one for None, a tuple of one for a single function.

    >>> list_functions(None), list_functions("math:floor")
    ((), ('math:floor',))
    """
    if functions is None:
        return ()
    return (functions,) if callable(functions) or isinstance(functions, (str, Mapping)) else tuple(functions)


def identify_function(function: Function) -> str:
    """Return a digest that differs for functions that differ: of the code and of all that it reads."""
    return whole_digest(load_function(function))


def _parse(function: Function) -> Callable[..., Any] | Mapping[str, Any]:
    return ModuleSpec.create(function) if isinstance(function, str) else function


P = ParamSpec("P")
R = TypeVar("R")


def make_plain(value: Any) -> Any:
    """Return a value with only dicts, tuples, texts and numbers of Python in it. Functions and other objects stay.

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
    """Return decorate a function that expects dicts, so that its arguments may be or contain a `ConfigDict`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        plain_function: Callable[..., R] = function
        named = {name: _replace_configs(value) for name, value in kwargs.items()}
        return plain_function(*map(_replace_configs, args), **named)

    return call


def _replace_configs(value: Any) -> Any:
    """Return the same value with a dict instead of each `ConfigDict` in it. Everything else stays as it is."""
    if isinstance(value, Mapping) or _is_config(value):
        return {key: _replace_configs(entry) for key, entry in value.items()}
    return type(value)(map(_replace_configs, value)) if type(value) in (list, tuple) else value


def _is_config(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "to_dict", None)) and hasattr(value, "items")


def as_mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return a value as a mapping: a dict, or an object such as a `ConfigDict`.

    Others raise TypeError, which names `what`.

    >>> as_mapping({"seed": 1}, "A config")
    {'seed': 1}
    """
    if isinstance(value, Mapping):
        return value
    if _is_config(value):
        return value.to_dict()
    raise TypeError(f"{what} must be a dict, got {type(value).__name__}.")


def to_json(value: Any, where: str) -> Any:
    """Return a value as JSON can hold it. A function becomes the spec that names it. `where` is its name in messages.

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
    """Raise ValueError for a name that is not known, with the nearest known name.

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
