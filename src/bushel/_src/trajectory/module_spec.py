"""Functions and classes in configurations: as callables, as "module:name", or as a spec with arguments.

What a spec names is imported when it is loaded. `trusted_functions.py` says which names a file may use.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
        """The spec of a callable, which may be given as "module:name"."""
        if isinstance(callable_or_full_name, str):
            module, colon, name = callable_or_full_name.partition(":")
            if not (module and colon and name) or ":" in name:
                raise ValueError(f"A name must have the form 'module:name', got {callable_or_full_name!r}.")
        else:
            module, name = _find_names(callable_or_full_name)
        return ModuleSpec(module=module, name=name, args=args, kwargs=kwargs)

    @staticmethod
    def instantiate(spec: Mapping[str, Any]) -> functools.partial[Any]:
        """The callable with its arguments bound. It is not called yet."""
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
        """The spec as a call in source code. It is part of the name under which statistics are kept."""
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
    """The callable itself, imported if it is given by name.

    >>> load_function("math:floor")(2.5)
    2
    """
    spec = _parse(function)
    return ModuleSpec.instantiate(spec) if isinstance(spec, Mapping) else spec


def list_functions(functions: Sequence[Function] | Function | None) -> tuple[Function, ...]:
    """Functions as a tuple: an empty one for None, a tuple of one for a single function.

    >>> list_functions(None), list_functions("math:floor")
    ((), ('math:floor',))
    """
    if functions is None:
        return ()
    return (functions,) if callable(functions) or isinstance(functions, (str, Mapping)) else tuple(functions)


def identify_function(function: Function) -> str:
    """A digest that differs for functions that differ: of the code and of all that it reads."""
    return whole_digest(load_function(function))


def _parse(function: Function) -> Callable[..., Any] | Mapping[str, Any]:
    return ModuleSpec.create(function) if isinstance(function, str) else function
