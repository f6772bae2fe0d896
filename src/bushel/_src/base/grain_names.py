"""Names for programs written for Grain: `import grain`, its settings, its attributes of users' classes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

_DEFAULTS = {
    "py_debug_mode": False,
    "py_dataset_visualization_output_dir": None,
    "py_relay_sigterm_to_main": False,
    "py_traceback_filtering": "auto",
    "tf_interleaved_shuffle": False,
    "tf_interleaved_shuffle_block_size": 10,
    "tf_interleaved_shuffle_parallel_blocks": 10,
    "tf_lookup_batch_size": 100,
    "tf_lookup_num_parallel_calls": -1,
    "tf_lookup_fast_warmup": False,
    "tf_optimized_sequential_read": False,
    "tf_prefetch_buffer_size": -1,
}

_PROFILING = "grain_enable_multiprocess_worker_profiling"


class Config:
    """Settings under Grain's names. No flags need to be parsed.

    `py_traceback_filtering="off"` keeps Bushel's own code in the tracebacks of your errors. The others change nothing:
    use `iterator.report()` and `DatasetOptions` instead.

    >>> config = Config()
    >>> config.update("py_debug_mode", True)
    >>> config.py_debug_mode
    True
    """

    def __init__(self) -> None:
        vars(self).update(_values=dict(_DEFAULTS), _updated=set(), _flags=None)

    def update(self, name: str, value: Any) -> None:
        """Set a setting."""
        self._values[self._known(name)] = value
        self._updated.add(name)

    def get_or_default(self, name: str) -> Any:
        """Return the value of a setting."""
        value = self._values[self._known(name)]
        flags = vars(self)["_flags"]
        if flags is not None and name not in self._updated and flags.is_parsed():
            return flags[f"grain_{name}"].value
        return value

    def define_flags(self) -> None:
        """Define Grain's absl flags, such as `--grain_py_debug_mode`, where absl is installed and Grain is not loaded.

        A program that parses its flags then gets the settings from there, as with Grain.
        """
        try:
            from absl import flags
        except ImportError:
            return
        kinds = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, str: flags.DEFINE_string}
        for name, default in _DEFAULTS.items():
            if f"grain_{name}" not in flags.FLAGS:
                define = kinds.get(type(default), flags.DEFINE_string)
                define(f"grain_{name}", default, "A setting of Grain; see bushel.config.")
        if _PROFILING not in flags.FLAGS:
            flags.DEFINE_bool(_PROFILING, False, "A setting of Grain; it changes nothing in Bushel.")
        vars(self)["_flags"] = flags.FLAGS

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise ValueError(f"Unrecognized config option: {name}. There are {', '.join(sorted(_DEFAULTS))}.")
        return name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get_or_default(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"Please use config.update({name!r}, {value!r}).")


config = Config()


VARIABLE = "BUSHEL_AS_GRAIN"
"""The environment variable that makes the workers of such a program do the same."""

MODULES = {
    "grain": "bushel",
    "grain.checkpoint": "bushel.checkpoint",
    "grain.constants": "bushel.constants",
    "grain.experimental": "bushel.experimental",
    "grain.multiprocessing": "bushel.multiprocessing",
    "grain.python": "bushel.python",
    "grain.python.experimental": "bushel.experimental",
    "grain.samplers": "bushel.samplers",
    "grain.sharding": "bushel.sharding",
    "grain.sources": "bushel.sources",
    "grain.transforms": "bushel.transforms",
}


def install() -> None:
    """Make `import grain` load Bushel in this process from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def install_where_asked() -> None:
    """Call `install` if the environment variable is set."""
    if VARIABLE in os.environ:
        install()


class _Finder:
    """Finds Grain's modules, and loads Bushel's modules in their place: the same objects, not copies."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "grain":
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"This program runs on Bushel, which replaces Grain's public modules. {fullname} is not one of them. "
                "Run it with plain Python to use Grain.",
                name=fullname,
            )
        return ModuleSpec(fullname, cast(Any, self))  # a loader by its methods: `importlib.abc` would load many modules

    def create_module(self, spec: ModuleSpec) -> Any:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import statement returns what is in sys.modules after this function.
        sys.modules[module.__name__] = importlib.import_module(MODULES[module.__name__])
        if module.__name__ == "grain":
            config.define_flags()


class Stats:
    """Takes the calls of Grain's statistics of a dataset, and records nothing."""

    def record_self_time(
        self, *, num_elements: int = 1, offset_ns: float = 0
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context that measures nothing."""
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        """Return the element."""
        return element

    record_output_spec_for_batch = record_bytes_consumed = record_bytes_produced = record_output_spec


@dataclasses.dataclass(frozen=True)
class ProcessContext:
    """The process that an iterator runs in, as Grain counts them: always the only one."""

    process_index: int = 0
    process_count: int = 1


@dataclasses.dataclass(frozen=True)
class IteratorContext:
    """The context that Grain gives to an iterator."""

    mp_context: ProcessContext = ProcessContext()
