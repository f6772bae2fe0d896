"""Grain's settings by name, for programs that set them. Only one of them changes what Bushel does."""

from __future__ import annotations

from typing import Any

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
        """Sets a setting."""
        self._values[self._known(name)] = value
        self._updated.add(name)

    def get_or_default(self, name: str) -> Any:
        """The value of a setting."""
        value = self._values[self._known(name)]
        flags = vars(self)["_flags"]
        if flags is not None and name not in self._updated and flags.is_parsed():
            return flags[f"grain_{name}"].value
        return value

    def define_flags(self) -> None:
        """Defines Grain's absl flags, such as `--grain_py_debug_mode`, where absl is installed and Grain is not loaded.

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
