"""`make_oxe_dataset_kwargs` and `make_oxe_dataset_kwargs_and_weights`, for the tables of all projects."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Literal, get_args

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.trajectory.config_values import accept_configs
from bushel._src.trajectory.normalization import NormalizationType, Scaling
from bushel._src.trajectory.oxe.registry import Mix, Project, Views, check_mix, suggest

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
    """The arguments of `make_dataset_from_rlds` for a data set of Open X-Embodiment.

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
    """The arguments of the data sets of a mixture, and their weights: for `make_interleaved_dataset`.

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
    """The project of this name. Without a name: the first project whose table has all of `names`."""
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
    """The tables of a project."""
    return importlib.import_module(f"bushel._src.trajectory.oxe.{project}").PROJECT
