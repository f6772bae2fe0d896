"""The formats of episodes by name, and the function that opens a data set of any of them."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from bushel.base import checks
from bushel.base.hints import explains_arguments
from bushel.sources.paths import Options, Path
from bushel.trajectory.config_values import as_mapping, refuse_unknown
from bushel.trajectory.episode_builder import EpisodeBuilder

_OPENERS = {
    "rlds": "bushel.trajectory.rlds.reader:RLDSBuilder",
    "robomimic": "bushel.trajectory.array_episodes.robomimic:open_robomimic",
    "aloha": "bushel.trajectory.array_episodes.aloha:open_aloha",
    "npz": "bushel.trajectory.array_episodes.npz:open_npz",
    "lerobot": "bushel.trajectory.lerobot.builder:open_lerobot",
}
"""Functions of (name, data_dir, storage_options=) and options of the format. They are imported when one is needed."""

EpisodeFormat = Literal["rlds", "robomimic", "aloha", "npz", "lerobot"]
FORMATS: tuple[EpisodeFormat, ...] = get_args(EpisodeFormat)
"""The names of the formats."""


@explains_arguments("Write `open_episodes(name, data_dir)`: the data set `name` in the folder `data_dir`.")
def open_episodes(
    name: str,
    data_dir: Path,
    *,
    format: EpisodeFormat = "rlds",
    storage_options: Options | None = None,
    format_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> EpisodeBuilder:
    """Opens a data set of episodes: its splits, and its raw trajectories at any position.

    >>> import os, tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(os.path.join(folder, "0.npz"), state=np.zeros((5, 3)), action=np.zeros((5, 2)))
    >>> builder = open_episodes("mine", folder, format="npz")
    >>> builder.episodes("train")[0]["observation"]["state"].shape
    (5, 3)

    Args:
      name: the name of the data set.
      data_dir: a path or URL. The data set lies in data_dir/name, or is `data_dir` itself.
      format: the format: "rlds", "robomimic", "aloha", "npz" or "lerobot".
      storage_options: the options of the store.
      format_options: the options of the format: the other arguments of the function that opens it.
      cache_dir: the folder for what some formats keep between runs; by default the cache folder of Bushel.
    """
    check_format(format, name)
    opener = _load_opener(format)
    given = dict(as_mapping(format_options or {}, f"format_options of {name}"))
    known = [argument for argument in inspect.signature(opener).parameters if argument not in _COMMON]
    if given and not known:
        raise ValueError(f"Data set {name!r}: the format {format!r} has no format_options; got {sorted(given)}.")
    refuse_unknown(given, known, f"Data set {name!r}: the format {format!r}", "option")
    if "cache_dir" in known:
        given = {"cache_dir": cache_dir, **given}
    return opener(name, data_dir, storage_options=storage_options, **given)


_COMMON = ("name", "data_dir", "storage_options")


def check_format(format: Any, name: str) -> None:
    """Raises ValueError if there is no such format."""
    checks.choice(format, FORMATS, f"Data set {name!r}: format")


def _load_opener(format: str) -> Any:
    module, _, function = _OPENERS[format].partition(":")
    return getattr(importlib.import_module(module), function)
