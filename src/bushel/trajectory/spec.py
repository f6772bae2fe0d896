"""A function or class with arguments as plain data, for configurations. It is imported when it is instantiated."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

_KEYS = {"module", "name", "args", "kwargs"}


class ModuleSpec(dict[str, Any]):
    """A callable by name, with arguments for it: a dict of "module", "name", "args" and "kwargs".

    A plain dict with these keys, from a JSON file say, does as well.

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
            module, name = _names(callable_or_full_name)
        return ModuleSpec(module=module, name=name, args=args, kwargs=kwargs)

    @staticmethod
    def instantiate(spec: Mapping[str, Any]) -> functools.partial[Any]:
        """The callable with its arguments, still to be called."""
        if set(spec) != _KEYS:
            raise ValueError(f"A spec has the keys {sorted(_KEYS)}, got {sorted(spec)}. ModuleSpec.create makes one.")
        try:
            found: Any = importlib.import_module(spec["module"])
            for part in spec["name"].split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{spec['module']}:{spec['name']} cannot be imported: {error}.") from error
        return functools.partial(found, *spec["args"], **spec["kwargs"])

    @staticmethod
    def to_string(spec: Mapping[str, Any]) -> str:
        """The spec as it would be called: part of the name under which statistics are kept."""
        arguments = [str(arg) for arg in spec["args"]] + [f"{key}={value}" for key, value in spec["kwargs"].items()]
        return f"{spec['module']}:{spec['name']}({', '.join(arguments)})"


def _names(target: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name or "<" in name:
        raise ValueError(
            f"{target!r} cannot be found by a name. Define it at the top of a module, or give 'module:name'."
        )
    return module, name
