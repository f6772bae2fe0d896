"""`DatasetConfig` and `MixtureConfig`: data sets and mixtures as plain data, in code or in a file.

A file may name functions of trusted modules only. `trajectory_loader.py` opens the data sets.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import math
import numbers
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import find_module, public
from bushel._src.trajectory.backends import BACKENDS
from bushel._src.trajectory.config_values import SPEC_KEYS, Function, as_mapping, make_plain, refuse_unknown, to_json
from bushel._src.trajectory.data_utils import Compat, reproduces_faults
from bushel._src.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
from bushel._src.trajectory.episode_builder import EpisodeFormat, check_format
from bushel._src.trajectory.normalization import NormalizationType, Scaling, read_normalization_type
from bushel._src.trajectory.oxe.projects import (
    PROJECTS,
    make_oxe_dataset_kwargs,
    make_oxe_dataset_kwargs_and_weights,
)
from bushel._src.trajectory.standard_layout import Keys
from bushel._src.trajectory.standardization_steps import Statements

_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_DOORS = (
    "bushel.trajectory",
    *(f"bushel.trajectory.{name}" for name in ("data_utils", "goal_relabeling", "obs_transforms", "traj_transforms")),
)
"""Public modules whose functions a file may name, if they are defined in one of the modules of `_PURE`."""
_PURE = {
    f"bushel._src.trajectory.{name}"
    for name in (
        "augmentations",
        "data_utils",
        "goal_relabeling",
        "normalization",
        "obs_transforms",
        "traj_transforms",
        "oxe.special_transforms",
    )
}
"""Our own modules whose functions every file may name: they only compute, and read or write no files."""
_TABLES = {f"bushel.trajectory.oxe.{name}": project for name, project in PROJECTS.items()}


def check_references(content: Any, path: str, modules: Sequence[str]) -> None:
    """Raise ValueError for a configuration that names a function outside `modules` and our own transforms.

    Args:
      content: the content of the file.
      path: the path of the file, for the error.
      modules: packages and modules that the caller trusts, such as "my_robots".
    """
    for module, name in _find_references(content):
        trusted = any(module == known or module.startswith(f"{known}.") for known in modules)
        if not trusted and not _is_library_transform(module, name):
            raise ValueError(
                f"{path} names the function {module}:{name}, which would be imported and called. If you trust the "
                f"file, say so in your code: MixtureConfig.from_file({path!r}, modules=[{module.partition('.')[0]!r}])."
            )


def _is_library_transform(module: str, name: str) -> bool:
    if module in _TABLES and name in _TABLES[module].functions:
        return True
    if module not in (*_DOORS, *_TABLES):
        return False
    # A name with dots is refused, since getattr does not find it: it could lead to another module.
    function = getattr(importlib.import_module(module), name, None)
    return isinstance(function, types.FunctionType) and find_module(function) in _PURE


def _find_references(content: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of each function that a configuration names."""
    if isinstance(content, str):
        if match := _REFERENCE.fullmatch(content):
            yield match[1], match[2]
    elif isinstance(content, Mapping):
        if set(content) == SPEC_KEYS:
            yield str(content["module"]), str(content["name"])
        for value in content.values():
            yield from _find_references(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _find_references(value)


@public("bushel.trajectory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One data set: its folder, the entries to use, and the functions to apply.

    Functions are callables, "module:name", or specs of `ModuleSpec.create`. Functions with a name can be saved.
    `standardize_fn` may also be a list of statements (`docs/oxe.md`). The fields are arguments of
    `make_dataset_from_rlds`, except these:

    Args:
      format: the format: "rlds", "robomimic", "aloha", "npz" or "lerobot"; see `open_episodes`.
      weight: its share of a mixture, in any unit.
      frame_filter: a function of a trajectory that returns one bool per frame: which frames are samples.
      override_traj_transform_kwargs: arguments that replace those in the mixture's `traj_transform_kwargs`.

    >>> config = DatasetConfig(name="bridge", data_dir="data", image_obs_keys={"primary": "image_0"}, weight=2)
    >>> DatasetConfig.from_dict(config.to_dict()) == config
    True
    """

    name: str
    data_dir: str
    format: EpisodeFormat = "rlds"
    weight: float = 1.0
    train_split: str | None = None
    val_split: str | None = None
    standardize_fn: Function | Sequence[Any] | None = None
    shuffle: bool = True
    image_obs_keys: Keys = dataclasses.field(default_factory=dict)
    depth_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    proprio_obs_key: str | None = None
    state_obs_keys: Sequence[str | None] = ()
    language_key: str | None = None
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL
    dataset_statistics: Mapping[str, Any] | str | None = None
    force_recompute_dataset_statistics: bool = False
    action_normalization_mask: Sequence[bool] | None = None
    absolute_action_mask: Sequence[bool] | None = None
    filter_functions: Sequence[Function] = ()
    frame_filter: Function | None = None
    skip_norm: bool = False
    skip_norm_keys: Sequence[str] = ()
    ignore_errors: bool = False
    override_traj_transform_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_parallel_reads: int | None = None
    num_parallel_calls: int | None = None
    cache_dir: str | None = None
    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    format_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _make_plain(self)
        object.__setattr__(self, "storage_options", redact.Options(self.storage_options))
        for field in ("name", "data_dir"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                value = redact.clean(repr(getattr(self, field)))
                raise TypeError(f"{field} of a DatasetConfig must be a text, got {value}.")
        check_format(self.format, self.name)
        weight = self.weight
        if not isinstance(weight, numbers.Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(f"Data set {self.name!r}: weight must be a number, 0 or above; got {weight!r}.")
        what = f"Data set {self.name!r}"
        for field in ("image_obs_keys", "depth_obs_keys", "proprio_obs_keys", "proprio_obs_dims", "format_options"):
            as_mapping(getattr(self, field), f"{what}: {field}")
        _check_kwargs(
            self.override_traj_transform_kwargs, f"{what}: override_traj_transform_kwargs", list_traj_arguments()
        )
        if isinstance(self.standardize_fn, (list, tuple)):
            Statements(self.standardize_fn, f"{what}: standardize_fn")
        scale = read_normalization_type(self.action_proprio_normalization_type)
        object.__setattr__(self, "action_proprio_normalization_type", scale)

    def __repr__(self) -> str:
        return _format_config(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return a config from its fields. An unknown name raises ValueError, with the nearest known name.

        With "oxe_kwargs", arguments of `make_oxe_dataset_kwargs`, the fields come from the tables of Open X-Embodiment.
        Fields beside it replace them.
        """
        fields = dict(as_mapping(given, "What makes a DatasetConfig"))
        if "oxe_kwargs" in fields:
            fields = {**_call_oxe(make_oxe_dataset_kwargs, fields.pop("oxe_kwargs")), **fields}
        if "dataset_frame_transform_kwargs" in fields:  # OpenVLA's name
            chunks = as_mapping(fields.pop("dataset_frame_transform_kwargs") or {}, "dataset_frame_transform_kwargs")
            refuse_unknown(chunks, ["chunk_filter_fn"], "dataset_frame_transform_kwargs", "argument")
            fields.setdefault("frame_filter", chunks.get("chunk_filter_fn"))
        return _from_fields(cls, fields, ("name", "data_dir"))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain data for JSON."""
        return _fields_to_dict(self)

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `make_single_dataset` and `make_interleaved_dataset`."""
        return _select_fields(self, without=("weight",))


@public("bushel.trajectory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """One or several data sets and their transforms: the whole description of the data of a training run.

    Args:
      datasets: the data sets, or dicts of their fields.
      sample_weights: shares of frames, in any unit; by default the `weight` of each data set.
      balance_weights: multiplies the shares by the numbers of frames.
      train: True for training, False for validation.
      batch_size: rows per batch, over all hosts.
      traj_transform_kwargs: arguments of `apply_trajectory_transforms`.
      frame_transform_kwargs: arguments of `apply_frame_transforms`.
      shuffle_buffer_size: ignored. The original has it; here the shuffle is global and needs no buffer.
      traj_transform_threads, traj_read_threads: hints for the number of threads.
      seed: the seed of the order and of all draws.
      compat: "crossformer" for the original's output with all its faults.
      cache_dir: folder for the tables of data sets that have no `cache_dir` of their own.
      data_backend: the engine of a loader, "bushel" or "grain". A dict or a file may have `use_grain` instead.

    >>> config = MixtureConfig.from_mix([("bridge", 3.0), ("kuka", 1.0)], {"bridge": {}, "kuka": {}}, data_dir="data")
    >>> [(one.name, one.weight) for one in config.datasets]
    [('bridge', 3.0), ('kuka', 1.0)]
    """

    datasets: Sequence[DatasetConfig]
    sample_weights: Sequence[float] | None = None
    balance_weights: bool = False
    train: bool = True
    batch_size: int | None = None
    traj_transform_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    frame_transform_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shuffle_buffer_size: int | None = None
    traj_transform_threads: int | None = None
    traj_read_threads: int | None = None
    seed: int = 0
    compat: Compat | None = None
    cache_dir: str | None = None
    data_backend: Literal["bushel", "grain"] = "bushel"

    def __post_init__(self) -> None:
        datasets = tuple(
            one if isinstance(one, DatasetConfig) else DatasetConfig.from_dict(one) for one in self.datasets
        )
        object.__setattr__(self, "datasets", datasets)
        _make_plain(self)
        if not datasets:
            raise ValueError("A mixture needs at least one data set; datasets is empty.")
        names = [one.name for one in datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"Names of data sets must differ, since statistics are kept by name; {twice} occur more than once."
            )
        checks.weights(self.weights, len(datasets), zero_allowed=True)
        if self.batch_size is not None:
            checks.positive(self.batch_size, "batch_size")
        checks.seed(self.seed)
        reproduces_faults(self.compat)
        checks.choice(self.data_backend, BACKENDS, "data_backend")
        _check_kwargs(self.traj_transform_kwargs, "traj_transform_kwargs", list_traj_arguments())
        _check_kwargs(self.frame_transform_kwargs, "frame_transform_kwargs", list_frame_arguments())

    @property
    def weights(self) -> list[float]:
        """The share of each data set, in any unit."""
        return [one.weight for one in self.datasets] if self.sample_weights is None else list(self.sample_weights)

    # Input.

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return a config from a `MixtureConfig`, a `DatasetConfig`, a dict, or the path of a JSON or YAML file."""
        if isinstance(config, cls):
            return config
        if isinstance(config, DatasetConfig):
            return cls(datasets=[config])
        return cls.from_file(config) if isinstance(config, (str, os.PathLike)) else cls.from_dict(config)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return a config from its fields, or from one of the original's layouts.

        The first are the arguments of `make_interleaved_dataset`, where "datasets" is called "dataset_kwargs_list". The
        second is a training config, which has these arguments, or those of a single data set, under "dataset_kwargs";
        other entries that are not about data are ignored. The third are the arguments of a single data set. In all of
        them "oxe_kwargs", arguments of `make_oxe_dataset_kwargs_and_weights`, may name a mixture of Open X-Embodiment.
        "datasets" beside it are added to that mixture.
        """
        given = _resolve_backend(as_mapping(given, "A config"))
        if "dataset_kwargs" in given:
            return cls.from_dict(_extract_data_fields(cls, given))
        if "oxe_kwargs" in given:
            return cls.from_dict(_add_oxe_mixture(given))
        if "dataset_kwargs_list" in given and "datasets" not in given:
            renamed = {**given, "datasets": given["dataset_kwargs_list"]}
            return cls.from_dict({name: value for name, value in renamed.items() if name != "dataset_kwargs_list"})
        if "datasets" not in given and "name" in given:
            return cls(datasets=[DatasetConfig.from_dict(given)])
        return _from_fields(cls, given, ("datasets",))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, modules: Sequence[str] = ()) -> Self:
        """Return a config from a .json, .yaml or .yml file, which holds what `from_dict` takes.

        Args:
          path: the path of the file.
          modules: packages whose functions the file may name, as "module:name". Without it the file may name only the
            transforms of `bushel.trajectory`, so that a file from elsewhere cannot run code.
        """
        file = Path(path)
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            yaml: Any = import_package("yaml", "robots", "YAML files")
            failure, load = yaml.YAMLError, yaml.safe_load
        elif file.suffix == ".json":
            failure, load = json.JSONDecodeError, json.loads
        else:
            raise ValueError(f"A config must be a .json, .yaml or .yml file; got {os.fspath(path)!r}.")
        try:
            content = load(text)
        except failure as error:
            raise ValueError(f"{os.fspath(path)} cannot be read as {file.suffix[1:].upper()}: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{os.fspath(path)} must hold the fields of a config by name, but holds {content!r}.")
        check_references(content, os.fspath(path), modules)
        return cls.from_dict(content)

    @classmethod
    def from_mix(
        cls,
        mix: Sequence[tuple[str, float]],
        table: Mapping[str, Mapping[str, Any]],
        *,
        data_dir: str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> Self:
        """Return a config from pairs (name, weight), like Octo's mixes, and a table with the fields of each data set.

        Args:
          mix: pairs (name, weight).
          table: the fields of the `DatasetConfig` for each name.
          data_dir: the folder of data sets for which the table has no `data_dir`.
          fields: other fields of the mixture.
        """
        common = {} if data_dir is None else {"data_dir": data_dir}
        datasets = []
        for name, weight in mix:
            refuse_unknown([name], table, "The table of data sets", "entry")
            datasets.append({**common, **table[name], "name": name, "weight": weight})
        return cls.from_dict({**fields, "datasets": datasets})

    # Output.

    def __repr__(self) -> str:
        return _format_config(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain data for JSON."""
        return {"datasets": [one.to_dict() for one in self.datasets], **_fields_to_dict(self)}

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `make_interleaved_dataset`."""
        datasets = [one.to_kwargs() for one in self.datasets]
        options = _select_fields(self, without=("datasets", "sample_weights", "data_backend"))
        return {"dataset_kwargs_list": datasets, "sample_weights": self.weights, **options}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the config to a JSON file for `from_file`. The file also contains secrets in storage options."""
        if Path(path).suffix != ".json":
            raise ValueError(f"A config can be saved only to a .json file; got {os.fspath(path)!r}.")
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        with checked_files.replacing(path) as file:
            file.write(text.encode())

    def changed(self, **changes: Any) -> Self:
        """Return the same config with other values for some fields."""
        changes = _resolve_backend(changes)
        refuse_unknown(changes, _list_fields(type(self)), type(self).__name__)
        return dataclasses.replace(self, **changes)


@functools.cache
def list_traj_arguments() -> tuple[str, ...]:
    """Return the names that `traj_transform_kwargs` may contain."""
    return tuple(
        name for name in inspect.signature(apply_trajectory_transforms).parameters if name not in _LOADERS_ARGUMENTS
    )


@functools.cache
def list_frame_arguments() -> tuple[str, ...]:
    """Return the names that `frame_transform_kwargs` may contain."""
    return tuple(
        name for name in inspect.signature(apply_frame_transforms).parameters if name not in _LOADERS_ARGUMENTS
    )


_LOADERS_ARGUMENTS = ("dataset", "train")  # arguments that the loader passes


def _extract_data_fields(kind: type[MixtureConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields about data in a training config: under "dataset_kwargs", and fields of a mixture beside it."""
    inner = as_mapping(given["dataset_kwargs"], "dataset_kwargs")
    beside = {name: given[name] for name in _list_fields(kind) if name in given}
    if "name" in inner:
        return {**beside, "datasets": [inner]}
    return {**beside, **inner}


def _add_oxe_mixture(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a mixture with the data sets that "oxe_kwargs" names, before those that are given."""
    fields = dict(given)
    kwargs, weights = _call_oxe(make_oxe_dataset_kwargs_and_weights, fields.pop("oxe_kwargs"))
    if fields.get("sample_weights") is not None:
        raise ValueError("oxe_kwargs names a mixture with weights of its own. Leave out sample_weights.")
    if not kwargs:
        raise ValueError("No data set of the mixture that oxe_kwargs names is left; the warnings say why.")
    listed = fields.pop("dataset_kwargs_list", None) or fields.get("datasets") or ()
    return {**fields, "datasets": [*({**one, "weight": weight} for one, weight in zip(kwargs, weights)), *listed]}


def _call_oxe(function: Callable[..., Any], given: Any) -> Any:
    arguments = as_mapping(given, "oxe_kwargs")
    known = inspect.signature(function).parameters
    refuse_unknown(arguments, known, "oxe_kwargs", "argument")
    missing = [name for name, entry in known.items() if entry.default is entry.empty and name not in arguments]
    if missing:
        raise ValueError(f"oxe_kwargs lacks {' and '.join(missing)}; it has {sorted(arguments)}.")
    return function(**arguments)


def choose_backend(asked: str | None, use_grain: bool | None) -> str | None:
    """Return the back end from `data_backend` and `use_grain`; None if neither is given.

    >>> choose_backend(None, True), choose_backend("bushel", False), choose_backend(None, None)
    ('grain', 'bushel', None)
    """
    if use_grain is None:
        return asked
    if not isinstance(use_grain, bool):
        raise TypeError(f"use_grain must be True or False, got {use_grain!r}.")
    switched = "grain" if use_grain else "bushel"
    if asked not in (None, switched):
        raise ValueError(f"data_backend={asked!r} and use_grain={use_grain} contradict each other. Give one of them.")
    return switched


def _resolve_backend(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with `data_backend` instead of `use_grain`."""
    fields = dict(given)
    backend = choose_backend(fields.get("data_backend"), fields.pop("use_grain", None))
    return fields if backend is None else {**fields, "data_backend": backend}


def _format_config(config: Any) -> str:
    """Return a config as text: its fields, without the secrets of URLs and storage options."""
    fields = ", ".join(f"{field.name}={getattr(config, field.name)!r}" for field in dataclasses.fields(config))
    return f"{type(config).__name__}({redact.clean(fields)})"


def _list_fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _select_fields(config: Any, without: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _list_fields(type(config)) if name not in without}


def _from_fields(kind: type[Any], given: Mapping[str, Any], needed: Sequence[str]) -> Any:
    given = as_mapping(given, f"What makes a {kind.__name__}")
    refuse_unknown(given, _list_fields(kind), kind.__name__)
    missing = [name for name in needed if name not in given]
    if missing:
        owner = f"The {kind.__name__} of {given['name']!r}" if "name" in given else f"A {kind.__name__}"
        raise ValueError(f"{owner} lacks {' and '.join(missing)}; it has {sorted(given)}.")
    return kind(**given)


def _check_kwargs(given: Any, what: str, known: Sequence[str]) -> None:
    refuse_unknown(as_mapping(given, what), known, what, "argument")


def _make_plain(config: Any) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        value = _get_default(field) if value is None and field.default_factory is dict else value
        object.__setattr__(config, field.name, make_plain(value))


def _get_default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _fields_to_dict(config: Any) -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(config) if field.name != "datasets"]
    fields = [field for field in fields if getattr(config, field.name) != _get_default(field)]
    return {field.name: to_json(getattr(config, field.name), field.name) for field in fields}
