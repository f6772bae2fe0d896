"""Data sets and mixtures as plain data, from dicts and files. Nothing is opened here: see loader.py."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bushel.base import checks, redact, sealed
from bushel.sources.needs import package
from bushel.trajectory.applying import apply_frame_transforms, apply_trajectory_transforms
from bushel.trajectory.backends import BACKENDS
from bushel.trajectory.compat import faithful
from bushel.trajectory.functions import Function
from bushel.trajectory.normalization import NormalizationType
from bushel.trajectory.plain import as_mapping, plain, refuse_unknown, written
from bushel.trajectory.restructure import Keys
from bushel.trajectory.trust import check_references


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One data set: where it lies, which of its entries are used, and what is done to them.

    Functions are callables, "module:name", or specs as `ModuleSpec.create` makes them; those that have a name can be
    saved. The fields are arguments of `make_dataset_from_rlds`, but for these:

    Args:
      kind: the format, "rlds".
      weight: its share of a mixture, in any unit.
      frame_filter: of a trajectory, one bool per frame: which of them are samples.
      override_traj_transform_kwargs: what differs for it from the mixture's `traj_transform_kwargs`.

    >>> config = DatasetConfig(name="bridge", data_dir="data", image_obs_keys={"primary": "image_0"}, weight=2)
    >>> DatasetConfig.from_dict(config.to_dict()) == config
    True
    """

    name: str
    data_dir: str
    kind: str = "rlds"
    weight: float = 1.0
    train_split: str | None = None
    val_split: str | None = None
    standardize_fn: Function | None = None
    shuffle: bool = True
    image_obs_keys: Keys = dataclasses.field(default_factory=dict)
    depth_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    proprio_obs_key: str | None = None
    language_key: str | None = None
    action_proprio_normalization_type: NormalizationType | str = NormalizationType.NORMAL
    dataset_statistics: Mapping[str, Any] | str | None = None
    force_recompute_dataset_statistics: bool = False
    action_normalization_mask: Sequence[bool] | None = None
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

    def __post_init__(self) -> None:
        _make_plain(self)
        object.__setattr__(self, "storage_options", redact.Options(self.storage_options))
        for field in ("name", "data_dir"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                value = redact.clean(repr(getattr(self, field)))
                raise TypeError(f"{field} of a DatasetConfig must be a text, got {value}.")
        if self.kind != "rlds":
            raise ValueError(
                f"Data set {self.name!r}: kind must be 'rlds', the format that is known; got {self.kind!r}."
            )
        weight = self.weight
        if not isinstance(weight, numbers.Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(f"Data set {self.name!r}: weight must be a number, 0 or above; got {weight!r}.")
        what = f"Data set {self.name!r}"
        for field in ("image_obs_keys", "depth_obs_keys", "proprio_obs_keys", "proprio_obs_dims"):
            as_mapping(getattr(self, field), f"{what}: {field}")
        _check_kwargs(self.override_traj_transform_kwargs, f"{what}: override_traj_transform_kwargs", traj_arguments())
        scale = NormalizationType(self.action_proprio_normalization_type)
        object.__setattr__(self, "action_proprio_normalization_type", scale)

    def __repr__(self) -> str:
        return _shown(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """A config from its fields. A name that is none of them is refused with the nearest one."""
        return _from_fields(cls, given, ("name", "data_dir"))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has them: the fields that differ from their defaults."""
        return _fields_to_dict(self)

    def to_kwargs(self) -> dict[str, Any]:
        """Arguments for `make_single_dataset` and `make_interleaved_dataset`, which pass them on."""
        left_out = {"kind", "weight"}
        return {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in left_out
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """One or several data sets and what becomes of them: all that a training run says about its data.

    Args:
      datasets: the data sets, or dicts of their fields.
      sample_weights: shares of frames, in any unit; by default each data set's own `weight`.
      balance_weights: multiplies shares by the numbers of frames.
      train: for training, or for validation.
      batch_size: rows of a batch, over all hosts.
      traj_transform_kwargs: of `apply_trajectory_transforms`.
      frame_transform_kwargs: of `apply_frame_transforms`.
      shuffle_buffer_size: accepted for the original's sake: frames are shuffled over all data, without a buffer.
      traj_transform_threads, traj_read_threads: hints for how many threads work.
      seed: of order and draws.
      compat: "crossformer" for the original's output with all its faults.
      cache_dir: where the tables of data sets are kept that do not say it themselves.
      data_backend: what drives a loader, "bushel" or "grain". A dict or a file may say `use_grain` instead.

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
    compat: str | None = None
    cache_dir: str | None = None
    data_backend: str = "bushel"

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
                f"Names of data sets must differ, since statistics go by them; {twice} come more than once."
            )
        checks.weights(self.weights, len(datasets), zero_allowed=True)
        if self.batch_size is not None:
            checks.positive(self.batch_size, "batch_size")
        checks.seed(self.seed)
        faithful(self.compat)
        if self.data_backend not in BACKENDS:
            raise ValueError(f"data_backend must be one of {', '.join(BACKENDS)}; got {self.data_backend!r}.")
        _check_kwargs(self.traj_transform_kwargs, "traj_transform_kwargs", traj_arguments())
        _check_kwargs(self.frame_transform_kwargs, "frame_transform_kwargs", frame_arguments())

    @property
    def weights(self) -> list[float]:
        """The share of each data set, in any unit."""
        return [one.weight for one in self.datasets] if self.sample_weights is None else list(self.sample_weights)

    # Where it comes from.

    @classmethod
    def of(cls, config: Any) -> Self:
        """The config that is meant: one of a mixture or of a data set, a dict, or a JSON or YAML file."""
        if isinstance(config, cls):
            return config
        if isinstance(config, DatasetConfig):
            return cls(datasets=[config])
        return cls.from_file(config) if isinstance(config, (str, os.PathLike)) else cls.from_dict(config)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """A config from its fields, or from one of the original's layouts.

        Those are: arguments of `make_interleaved_dataset`, where "datasets" is "dataset_kwargs_list"; a training
        config, which has them, or those of a single data set, under "dataset_kwargs" (entries beside it that say
        nothing about data are left out); and the arguments of a single data set.
        """
        given = _with_backend(as_mapping(given, "A config"))
        if "dataset_kwargs" in given:
            return cls.from_dict(_of_training(cls, given))
        if "oxe_kwargs" in given:
            raise ValueError(
                "oxe_kwargs names a mixture of the original's own tables, which are not part of Bushel. Give the "
                "table to MixtureConfig.from_mix(mix, table, data_dir=...)."
            )
        if "dataset_kwargs_list" in given and "datasets" not in given:
            renamed = {**given, "datasets": given["dataset_kwargs_list"]}
            return cls.from_dict({name: value for name, value in renamed.items() if name != "dataset_kwargs_list"})
        if "datasets" not in given and "name" in given:
            return cls(datasets=[DatasetConfig.from_dict(given)])
        return _from_fields(cls, given, ("datasets",))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, modules: Sequence[str] = ()) -> Self:
        """A config in a file: JSON, or YAML where the name ends so. It holds what `from_dict` takes.

        Args:
          path: of the file.
          modules: packages whose functions the file may name, as "module:name". Without it the file may name the
            transforms of `bushel.trajectory` alone, so that a file from elsewhere cannot run code.
        """
        file = Path(path)
        text = file.read_text(encoding="utf-8")
        if file.suffix in (".yaml", ".yml"):
            yaml: Any = package("yaml", "robots", "YAML files")
            failed, load = yaml.YAMLError, yaml.safe_load
        elif file.suffix == ".json":
            failed, load = json.JSONDecodeError, json.loads
        else:
            raise ValueError(f"A config is a .json, .yaml or .yml file; got {os.fspath(path)!r}.")
        try:
            found = load(text)
        except failed as error:
            raise ValueError(f"{os.fspath(path)} cannot be read as {file.suffix[1:].upper()}: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"{os.fspath(path)} must hold the fields of a config by name, but holds {found!r}.")
        check_references(found, os.fspath(path), modules)
        return cls.from_dict(found)

    @classmethod
    def from_mix(
        cls,
        mix: Sequence[tuple[str, float]],
        table: Mapping[str, Mapping[str, Any]],
        *,
        data_dir: str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> Self:
        """A config from pairs (name, weight), as Octo's mixes are, and a table of the fields of each data set.

        Args:
          mix: names and weights.
          table: for each name the fields of its `DatasetConfig`.
          data_dir: where those data sets lie for which the table does not say it.
          fields: others of the mixture.
        """
        common = {} if data_dir is None else {"data_dir": data_dir}
        datasets = []
        for name, weight in mix:
            refuse_unknown([name], table, "The table of data sets", "entry")
            datasets.append({**common, **table[name], "name": name, "weight": weight})
        return cls.from_dict({**fields, "datasets": datasets})

    # Where it goes.

    def __repr__(self) -> str:
        return _shown(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has them: the fields that differ from their defaults."""
        return {"datasets": [one.to_dict() for one in self.datasets], **_fields_to_dict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a JSON file that `from_file` reads. It holds everything, secret storage options too."""
        if Path(path).suffix != ".json":
            raise ValueError(f"A config is saved to a .json file; got {os.fspath(path)!r}.")
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        with sealed.replacing(path) as file:
            file.write(text.encode())

    def changed(self, **changes: Any) -> Self:
        """The same config with other values of some fields."""
        changes = _with_backend(changes)
        refuse_unknown(changes, _names(type(self)), type(self).__name__)
        return dataclasses.replace(self, **changes)


@functools.cache
def traj_arguments() -> tuple[str, ...]:
    """What `traj_transform_kwargs` may hold."""
    return tuple(name for name in inspect.signature(apply_trajectory_transforms).parameters if name not in _OURS)


@functools.cache
def frame_arguments() -> tuple[str, ...]:
    """What `frame_transform_kwargs` may hold."""
    return tuple(name for name in inspect.signature(apply_frame_transforms).parameters if name not in _OURS)


_OURS = ("dataset", "train")  # which the loader gives


def _of_training(kind: type[MixtureConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a training config says about data: under "dataset_kwargs", and in the fields of a mixture beside it."""
    inner = as_mapping(given["dataset_kwargs"], "dataset_kwargs")
    beside = {name: given[name] for name in _names(kind) if name in given}
    if "name" in inner:
        return {**beside, "datasets": [inner]}
    return {**beside, **inner}


def backend_of(asked: str | None, use_grain: bool | None) -> str | None:
    """The back end that is asked for by name, or by the switch; None where neither says anything.

    >>> backend_of(None, True), backend_of("bushel", False), backend_of(None, None)
    ('grain', 'bushel', None)
    """
    if use_grain is None:
        return asked
    if not isinstance(use_grain, bool):
        raise TypeError(f"use_grain must be True or False, got {use_grain!r}.")
    switched = "grain" if use_grain else "bushel"
    if asked not in (None, switched):
        raise ValueError(f"data_backend={asked!r} and use_grain={use_grain} contradict each other: give one of them.")
    return switched


def _with_backend(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with `data_backend` in place of the switch `use_grain`."""
    found = dict(given)
    backend = backend_of(found.get("data_backend"), found.pop("use_grain", None))
    return found if backend is None else {**found, "data_backend": backend}


def _shown(config: Any) -> str:
    """A config as text: its fields, without the secrets of URLs and storage options."""
    fields = ", ".join(f"{field.name}={getattr(config, field.name)!r}" for field in dataclasses.fields(config))
    return f"{type(config).__name__}({redact.clean(fields)})"


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _from_fields(kind: type[Any], given: Mapping[str, Any], needed: Sequence[str]) -> Any:
    given = as_mapping(given, f"What makes a {kind.__name__}")
    refuse_unknown(given, _names(kind), kind.__name__)
    missing = [name for name in needed if name not in given]
    if missing:
        told = f" {given['name']!r}" if "name" in given else ""
        raise ValueError(f"{kind.__name__}{told} needs {' and '.join(missing)}; got {sorted(given)}.")
    return kind(**given)


def _check_kwargs(given: Any, what: str, known: Sequence[str]) -> None:
    refuse_unknown(as_mapping(given, what), known, what, "argument")


def _make_plain(config: Any) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        value = _default(field) if value is None and field.default_factory is dict else value
        object.__setattr__(config, field.name, plain(value))


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _fields_to_dict(config: Any) -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(config) if field.name != "datasets"]
    fields = [field for field in fields if getattr(config, field.name) != _default(field)]
    return {field.name: written(getattr(config, field.name), field.name) for field in fields}
