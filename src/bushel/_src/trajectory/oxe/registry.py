"""The data sets and mixtures of Open X-Embodiment, as each project has them, and the arguments that they give.

The data are in `datasets.json`, `transforms.json` and `mixtures.json`. Four projects have such tables, and they differ:
Octo, CrossFormer, OpenVLA, and X-Gym, a fork of CrossFormer.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import functools
import importlib
import importlib.resources
import json
import math
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from bushel._src.base import checks
from bushel._src.base.errors import BushelError, BushelWarning
from bushel._src.base.public import public
from bushel._src.trajectory.config_values import Function, ModuleSpec, accept_configs
from bushel._src.trajectory.data_utils import filter_success_droid
from bushel._src.trajectory.normalization import NormalizationType, Scaling, read_normalization_type
from bushel._src.trajectory.oxe import special_transforms
from bushel._src.trajectory.standardization_steps import Statements

Mix = Sequence[tuple[str, float]]
Views = Sequence[str]

_NO_DEPTH = {"primary": None, "secondary": None, "wrist": None}
_LISTED = 12  # names in an error
_ENCODINGS = ("proprio_encoding", "state_encoding", "action_encoding")
_ARM = [True] * 6 + [False]  # six numbers of a pose or of joints, and a gripper, which is not normalised
_MASKS = {
    "EEF_POS": _ARM,
    "JOINT_POS": [True] * 7 + [False],
    "JOINT_POS_BIMANUAL": _ARM * 2,
    "NAV_2D": [True] * 2,
    "JOINT_POS_BIMANUAL_NAV": _ARM * 2 + [True] * 2,
    "QUADRUPED": [True] * 12,
    "EEF_R6": [True] * 9 + [False],
    "MANO": [True] * 7,
}
"""The `action_normalization_mask` of each action encoding."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {"filter_success_droid": filter_success_droid}


@functools.cache
def read_table(name: str) -> Any:
    """Return the content of a JSON file of this package."""
    return json.loads(
        importlib.resources.files("bushel._src.trajectory.oxe").joinpath(name).read_text(encoding="utf-8")
    )


@public("bushel.trajectory")
class NotTrained(BushelError, ValueError):
    """A data set does not fit what a mixture asks for. The mixture goes on without it."""


class Registry(dict[str, Any]):
    """A dict whose error for an unknown name has the nearest names. Entries may be added, as to any dict."""

    def __init__(self, entries: Mapping[str, Any], what: str):
        super().__init__(entries)
        self._what = what

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"{self._what} has no {name!r}. {suggest(name, self)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names that are nearest to an unknown one, or with some of them.

    >>> suggest("rtx_franca", ["rtx", "rtx_franka", "bridge"])
    "Did you mean 'rtx_franka'?"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 3, 0.5)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are {', '.join(names[:_LISTED])}{more}."


@dataclasses.dataclass(frozen=True, eq=False)
class Project:
    """The tables of one project. The three dicts have the contents of the original's, and entries may be added.

    Attributes:
      name: "octo", "crossformer", "openvla" or "xgym".
      configs: `OXE_DATASET_CONFIGS`: cameras, depth, proprioception and encodings of each data set.
      transforms: `OXE_STANDARDIZATION_TRANSFORMS`: the `standardize_fn` of each data set. Functions, ModuleSpecs and
        lists of statements may be added.
      mixes: `OXE_NAMED_MIXES`: pairs (name of the data set, weight) of each mixture.
      functions: the functions of `transforms` by the names that they have in the original.
      action_encoding: the enum of action encodings.
      is_octo: has a single `proprio_obs_key`.
      is_openvla: has `state_obs_keys` and an `absolute_action_mask`.
    """

    name: str
    configs: Registry
    transforms: Registry
    mixes: Registry
    functions: Registry
    action_encoding: type[enum.IntEnum]
    masked: tuple[str, ...]
    is_octo: bool = False
    is_openvla: bool = False

    def make_dataset_kwargs(
        self,
        name: str,
        data_dir: str | os.PathLike[str],
        load_camera_views: Views = ("primary",),
        load_depth: bool = False,
        load_proprio: bool = False,
        load_language: bool = True,
        force_recompute_dataset_statistics: bool = False,
        action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
    ) -> dict[str, Any]:
        """Return the arguments of `make_dataset_from_rlds` for a data set; see `make_oxe_dataset_kwargs`."""
        config = copy.deepcopy(dict(self.configs[name]))
        config["action_normalization_mask"] = self._find_mask(name, config)
        if self.is_openvla:
            config["absolute_action_mask"] = [not scaled for scaled in config["action_normalization_mask"]]
        for encoding in _ENCODINGS:
            config.pop(encoding, None)
        self._select_views(name, config, load_camera_views, load_depth)
        self._select_proprio(config, load_proprio)
        if load_language:
            config["language_key"] = "language_instruction"
        if force_recompute_dataset_statistics:
            config["force_recompute_dataset_statistics"] = True
        if "chunk_filter_fn" in config:
            config["dataset_frame_transform_kwargs"] = {"chunk_filter_fn": config.pop("chunk_filter_fn")}
        config["action_proprio_normalization_type"] = read_normalization_type(action_proprio_normalization_type)
        config["standardize_fn"] = self._find_standardization(name)
        return {"name": name, "data_dir": os.fspath(data_dir), **config}

    def make_kwargs_and_weights(
        self,
        data_mix: str | Mix,
        data_dir: str | os.PathLike[str],
        load_camera_views: Views = ("primary",),
        load_depth: bool = False,
        load_proprio: bool = False,
        load_language: bool = True,
        force_recompute_dataset_statistics: bool = False,
        action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
    ) -> tuple[list[dict[str, Any]], list[float]]:
        """Return the arguments and the weights of a mixture; see `make_oxe_dataset_kwargs_and_weights`."""
        mix = self.mixes[data_mix] if isinstance(data_mix, str) else data_mix
        read_normalization_type(action_proprio_normalization_type)  # else a wrong one would remove all data sets
        arguments = (load_camera_views, load_depth, load_proprio, load_language)
        more = (force_recompute_dataset_statistics, action_proprio_normalization_type)
        weights: dict[str, float] = {}
        kwargs = []
        for name, weight in check_mix(mix):
            if name in weights:
                warnings.warn(
                    f"The mixture has {name} more than once; its weight is {weights[name]}.",
                    BushelWarning,
                    stacklevel=3,
                )
                continue
            try:
                kwargs.append(self.make_dataset_kwargs(name, data_dir, *arguments, *more))
            except NotTrained as error:
                warnings.warn(f"The mixture goes on without {name}: {error}", BushelWarning, stacklevel=3)
                continue
            weights[name] = weight
        return kwargs, list(weights.values())

    def get_function(self, name: str) -> Any:
        """Return a standardisation by the name of its function in the original, for `from bushel.trajectory.oxe.octo
        import`.

        An unknown name raises AttributeError.
        """
        if name not in self.functions:
            raise AttributeError(f"module 'bushel.trajectory.oxe.{self.name}' has no attribute {name!r}")
        return self.functions[name]

    def _find_mask(self, name: str, config: Mapping[str, Any]) -> list[bool]:
        if "action_encoding" not in config:
            raise ValueError(f"The entry of {name} in OXE_DATASET_CONFIGS has no 'action_encoding'.")
        given = config["action_encoding"]
        try:
            encoding = self.action_encoding[given] if isinstance(given, str) else self.action_encoding(given)
        except (KeyError, ValueError):
            names = ", ".join(self.action_encoding.__members__)
            raise ValueError(f"{name} has the action encoding {given!r}, but {self.name} has {names}.") from None
        if encoding.name not in self.masked:
            raise NotTrained(
                f"{name} has the action encoding {encoding.name}, and {self.name} trains only on data sets with "
                f"{' or '.join(self.masked)}."
            )
        return list(_MASKS[encoding.name])

    def _select_views(self, name: str, config: dict[str, Any], views: Views, load_depth: bool) -> None:
        if not isinstance(views, Iterable):
            raise TypeError(f"load_camera_views must be names of cameras, got {views!r}.")
        wanted = (views,) if isinstance(views, str) else tuple(views)
        cameras = config.get("image_obs_keys", {})
        missing = [view for view in wanted if view not in cameras]
        if missing:
            raise NotTrained(
                f"{name} has no camera view {', '.join(map(repr, missing))} in the table of {self.name}, but "
                f"{', '.join(cameras)}. Change load_camera_views, or choose another table with source=."
            )
        depth = config.pop("depth_obs_keys", {})
        config["image_obs_keys"] = {view: key for view, key in cameras.items() if view in wanted}
        if load_depth:
            config["depth_obs_keys"] = {view: key for view, key in depth.items() if view in wanted}

    def _select_proprio(self, config: dict[str, Any], wanted: bool) -> None:
        if self.is_openvla:
            if not wanted:
                config.pop("state_obs_keys", None)
            return
        config.pop("state_obs_keys", None)  # X-Gym lists entries of the raw data there, and nothing reads them
        if self.is_octo:
            if wanted:
                config["proprio_obs_key"] = "proprio"
        elif not wanted:
            config.pop("proprio_obs_keys", None)
        else:
            config.setdefault("proprio_obs_keys", {"primary": "proprio"})

    def _find_standardization(self, name: str) -> Function | Sequence[Any]:
        """Return the `standardize_fn` of a data set: a ModuleSpec for ours, so that it can be saved; else what was
        added.
        """
        entry = self.transforms[name]
        for function, value in self.functions.items():
            if value is entry:
                return ModuleSpec.create(f"bushel.trajectory.oxe.{self.name}:{function}")
        if not (callable(entry) or isinstance(entry, (str, Mapping))):
            Statements(entry, f"The standardisation of {name}")  # raises ValueError for a wrong statement
        return entry


def check_mix(mix: Any) -> Mix:
    """Return the pairs (name, weight) of a mixture, after a check of their types and weights.

    >>> check_mix([["bridge_dataset", 1]])
    [('bridge_dataset', 1)]
    """
    if not isinstance(mix, (list, tuple)):
        raise TypeError(f"A mixture is a name or a list of pairs (name, weight), got {mix!r}.")
    pairs = [tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in mix]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"A mixture is a list of pairs (name, weight), but has the entry {pair!r}.")
        if isinstance(pair[1], bool) or not isinstance(pair[1], numbers.Real) or not 0 <= float(pair[1]) < math.inf:
            raise ValueError(f"The weight of {pair[0]} in a mixture must be a number, 0 or above; got {pair[1]!r}.")
    return pairs


def load_project(
    name: str,
    action_encoding: type[enum.IntEnum],
    state_encoding: type[enum.IntEnum],
    *,
    masked: Sequence[str] | None = None,
    is_octo: bool = False,
    is_openvla: bool = False,
) -> Project:
    """Return the tables of a project, from the files of this package.

    Args:
      name: the name of the project in the files.
      action_encoding, state_encoding: its enums.
      masked: the action encodings it accepts; by default all.
      is_octo, is_openvla: see `Project`.
    """
    own = {data_set: entries[name] for data_set, entries in read_table("datasets.json").items() if name in entries}
    functions: dict[str, Any] = {}
    transforms: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for data_set, entry in own.items():
        config = dict(entry)
        transform = config.pop("transform", None)
        if transform is not None:
            function = transform.partition("/")[2]
            functions.setdefault(function, _make_function(transform))
            transforms[data_set] = functions[function]
        if config:
            configs[data_set] = _make_config(config, action_encoding, state_encoding)
    mixes = {
        mix: [(data_set, weight) for data_set, weight in pairs]
        for mix, pairs in read_table("mixtures.json")[name].items()
    }
    where = f"bushel.trajectory.oxe.{name}"
    return Project(
        name,
        Registry(configs, f"{where}.OXE_DATASET_CONFIGS"),
        Registry(transforms, f"{where}.OXE_STANDARDIZATION_TRANSFORMS"),
        Registry(mixes, f"{where}.OXE_NAMED_MIXES"),
        Registry(functions, where),
        action_encoding,
        tuple(action_encoding.__members__) if masked is None else tuple(masked),
        is_octo,
        is_openvla,
    )


def _make_function(transform: str) -> Callable[..., Any]:
    """Return the standardisation of a key of `transforms.json`."""
    entry = read_table("transforms.json")[transform]
    if isinstance(entry, Mapping):
        return getattr(special_transforms, entry["function"])
    return Statements(entry, transform.partition("/")[2])


def _make_config(
    entry: Mapping[str, Any], action_encoding: type[enum.IntEnum], state_encoding: type[enum.IntEnum]
) -> dict[str, Any]:
    """Return an entry of `OXE_DATASET_CONFIGS`, with members of the enums and functions instead of their names."""
    config = copy.deepcopy({"depth_obs_keys": _NO_DEPTH, **entry})
    config = {"image_obs_keys": config.pop("image_obs_keys"), **config}
    for name in _ENCODINGS:
        if name in config:
            config[name] = (action_encoding if name == "action_encoding" else state_encoding)[config[name]]
    if "filter_functions" in config:
        config["filter_functions"] = [_FUNCTIONS[function] for function in config["filter_functions"]]
    if "chunk_filter_fn" in config:
        config["chunk_filter_fn"] = getattr(special_transforms, config["chunk_filter_fn"])
    return config


ProjectName = Literal["octo", "crossformer", "openvla", "xgym"]
PROJECTS: tuple[ProjectName, ...] = get_args(ProjectName)
"""The projects with tables, in the order in which a name is looked up."""


@public("bushel.trajectory")
@accept_configs
def make_oxe_dataset_kwargs(
    name: str,
    data_dir: str | os.PathLike[str],
    load_camera_views: Views = ("primary",),
    load_depth: bool = False,
    load_proprio: bool = False,
    load_language: bool = True,
    force_recompute_dataset_statistics: bool = False,
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
    *,
    source: ProjectName | None = None,
) -> dict[str, Any]:
    """Return the arguments of `make_dataset_from_rlds` for a data set of Open X-Embodiment.

    Args:
      name: the name of the data set. An unknown one raises KeyError, with the nearest known names.
      data_dir: the data set lies in `data_dir/name`.
      load_camera_views: which cameras, by the names that all data sets of the table share, such as "primary" and
        "wrist". A data set without such a camera has padding. A name that the table does not have raises ValueError.
      load_depth: also the depth images of these views.
      load_proprio: also the proprioception.
      load_language: also the instruction.
      force_recompute_dataset_statistics: reads the data set again, even if the cache has it.
      action_proprio_normalization_type: "normal" or "bounds".
      source: the project whose table is used: "octo", "crossformer", "openvla" or "xgym". They differ in cameras and
        in proprioception. By default the first of them that has the data set.

    >>> kwargs = make_oxe_dataset_kwargs("bridge_dataset", "data", ("primary", "wrist"))
    >>> kwargs["image_obs_keys"], kwargs["action_normalization_mask"][-2:]
    ({'primary': 'image_0', 'wrist': None}, [True, False])
    """
    project = _choose_project(source, [name], "data set", lambda tables: tables.configs)
    return project.make_dataset_kwargs(
        name,
        data_dir,
        load_camera_views,
        load_depth,
        load_proprio,
        load_language,
        force_recompute_dataset_statistics,
        action_proprio_normalization_type,
    )


@public("bushel.trajectory")
@accept_configs
def make_oxe_dataset_kwargs_and_weights(
    data_mix: str | Mix,
    data_dir: str | os.PathLike[str],
    load_camera_views: Views = ("primary",),
    load_depth: bool = False,
    load_proprio: bool = False,
    load_language: bool = True,
    force_recompute_dataset_statistics: bool = False,
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
    *,
    source: ProjectName | None = None,
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the arguments of the data sets of a mixture, and their weights: for `make_interleaved_dataset`.

    A data set that does not have the asked camera views, or whose actions the project does not train on, is left out
    with a warning. Of a data set that is listed twice only the first entry counts. The originals do the same.

    Args:
      data_mix: the name of a mixture, such as "oxe_magic_soup" or "cross_embodiment", or pairs (name, weight).
      data_dir, load_camera_views, load_depth, load_proprio, load_language: see `make_oxe_dataset_kwargs`.
      force_recompute_dataset_statistics, action_proprio_normalization_type: see there.
      source: the project whose table is used. By default the first of "octo", "crossformer", "openvla" and "xgym" that
        has the mixture, or all data sets of the list.

    >>> kwargs, weights = make_oxe_dataset_kwargs_and_weights("rtx", "data")
    >>> kwargs[0]["name"], weights[0]
    ('fractal20220817_data', 0.54087122203)
    """
    if isinstance(data_mix, str):
        project = _choose_project(source, [data_mix], "mixture", lambda tables: tables.mixes)
    else:
        names = [name for name, _ in check_mix(data_mix)]
        project = _choose_project(source, names, "data set", lambda tables: tables.configs)
    return project.make_kwargs_and_weights(
        data_mix,
        data_dir,
        load_camera_views,
        load_depth,
        load_proprio,
        load_language,
        force_recompute_dataset_statistics,
        action_proprio_normalization_type,
    )


def _choose_project(
    source: ProjectName | None, names: list[str], what: str, get_table: Callable[[Project], dict[str, Any]]
) -> Project:
    """Return the project of this name. Without a name: the first project whose table has all of `names`."""
    if source is not None:
        return load_tables(checks.choice(source, ProjectName, "source"))
    projects = [load_tables(project) for project in PROJECTS]
    for project in projects:
        if all(name in get_table(project) for name in names):
            return project
    known = {name: None for project in projects for name in get_table(project)}
    for name in names:
        if name not in known:
            raise KeyError(f"Open X-Embodiment has no {what} {name!r}. {suggest(name, known)}")
    having = {name: [project.name for project in projects if name in get_table(project)] for name in names}
    listing = "; ".join(f"{name} in {', '.join(where)}" for name, where in having.items())
    raise KeyError(f"No project has all data sets of this mixture in its table: {listing}.")


def load_tables(project: str) -> Project:
    """Return the tables of a project."""
    return importlib.import_module(f"bushel._src.trajectory.oxe.{project}").PROJECT
