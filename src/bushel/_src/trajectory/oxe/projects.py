"""Octo, CrossFormer, OpenVLA and X-Gym: their tables and encodings, and the choice of the project of a data set."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any, Literal

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.config_values import accept_configs
from bushel._src.trajectory.normalization import NormalizationType, Scaling
from bushel._src.trajectory.oxe.registry import Mix, Project, Views, check_mix, load_project, suggest


@public("bushel.trajectory.oxe.octo", "ProprioEncoding")
@in_states("octo.ProprioEncoding")
class OctoProprioEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4
    POS_NAV = 5


@public("bushel.trajectory.oxe.octo", "ActionEncoding")
@in_states("octo.ActionEncoding")
class OctoActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT_POS_BIMANUAL = 3
    NAV_2D = 4
    JOINT_POS_BIMANUAL_NAV = 5


OCTO = load_project("octo", OctoActionEncoding, OctoProprioEncoding, is_octo=True)
OCTO_FULL_MIX: list[tuple[str, float]] = OCTO.mixes.pop("OXE_FULL_MIX")  # a list in Octo, but not a named mixture


@public("bushel.trajectory.oxe.crossformer", "ProprioEncoding")
@in_states("crossformer.ProprioEncoding")
class CrossFormerProprioEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4
    POS_NAV = 5
    QUADRUPED = 6


@public("bushel.trajectory.oxe.crossformer", "ActionEncoding")
@in_states("crossformer.ActionEncoding")
class CrossFormerActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT_POS_BIMANUAL = 3
    NAV_2D = 4
    JOINT_POS_BIMANUAL_NAV = 5
    QUADRUPED = 6


CROSSFORMER = load_project("crossformer", CrossFormerActionEncoding, CrossFormerProprioEncoding)


@public("bushel.trajectory.oxe.openvla", "StateEncoding")
@in_states("openvla.StateEncoding")
class OpenVLAStateEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4


@public("bushel.trajectory.oxe.openvla", "ActionEncoding")
@in_states("openvla.ActionEncoding")
class OpenVLAActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT_POS_BIMANUAL = 3
    EEF_R6 = 4


OPENVLA = load_project(
    "openvla", OpenVLAActionEncoding, OpenVLAStateEncoding, masked=("EEF_POS", "EEF_R6"), is_openvla=True
)


@public("bushel.trajectory.oxe.openvla", "make_oxe_dataset_kwargs")
def make_openvla_kwargs(
    dataset_name: str,
    data_root_dir: str | os.PathLike[str],
    load_camera_views: Views = ("primary",),
    load_depth: bool = False,
    load_proprio: bool = True,
    load_language: bool = True,
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
) -> dict[str, Any]:
    """Return the arguments of `make_dataset_from_rlds` for a data set, with the names and defaults of OpenVLA's
    function.
    """
    loaded = (load_camera_views, load_depth, load_proprio, load_language)
    return OPENVLA.make_dataset_kwargs(
        dataset_name, data_root_dir, *loaded, action_proprio_normalization_type=action_proprio_normalization_type
    )


@public("bushel.trajectory.oxe.openvla", "get_oxe_dataset_kwargs_and_weights")
def make_openvla_kwargs_and_weights(
    data_root_dir: str | os.PathLike[str],
    mixture_spec: Mix,
    load_camera_views: Views = ("primary",),
    load_depth: bool = False,
    load_proprio: bool = True,
    load_language: bool = True,
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the arguments and weights of a mixture, with the names and defaults of OpenVLA's function."""
    loaded = (load_camera_views, load_depth, load_proprio, load_language)
    return OPENVLA.make_kwargs_and_weights(
        mixture_spec, data_root_dir, *loaded, action_proprio_normalization_type=action_proprio_normalization_type
    )


@public("bushel.trajectory.oxe.xgym", "ProprioEncoding")
@in_states("xgym.ProprioEncoding")
class XGymProprioEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4
    POS_NAV = 5
    QUADRUPED = 6
    MANO = 7


@public("bushel.trajectory.oxe.xgym", "ActionEncoding")
@in_states("xgym.ActionEncoding")
class XGymActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT = 2  # another name of JOINT_POS
    JOINT_POS_BIMANUAL = 3
    NAV_2D = 4
    JOINT_POS_BIMANUAL_NAV = 5
    QUADRUPED = 6
    MANO = 7


@public("bushel.trajectory.oxe.xgym", "ActionDim")
@in_states("xgym.ActionDim")
class XGymActionDim(enum.IntEnum):
    """Widths of actions. Several names have the same width."""

    NAV_2D = 2
    JOINT_POS = 8
    JOINT_POS_BIMANUAL_NAV = 14
    QUADRUPED = 12
    SINGLE = 7
    BIMANUAL = 14
    MANO = 120
    DMANO_6 = 6
    DMANO_7 = 7
    DMANO_35 = 35
    DMANO_51 = 51
    DMANO_52 = 52
    DMANO_XYZ = 63
    K3DS = 84


@public("bushel.trajectory.oxe.xgym", "ProprioDim")
@in_states("xgym.ProprioDim")
class XGymProprioDim(enum.IntEnum):
    """Widths of proprioception. For hands it has a number more than the action: the focal length of the camera."""

    POS_EULER = 7
    POS_QUAT = 8
    JOINT = 8
    BIMANUAL = 14
    POS_NAV = 3
    QUADRUPED = 46
    DMANO_6 = 7
    DMANO_7 = 8
    DMANO_51 = 52
    DMANO_52 = 53
    MANO = 8


XGYM = load_project("xgym", XGymActionEncoding, XGymProprioEncoding)

ProjectName = Literal["octo", "crossformer", "openvla", "xgym"]
PROJECTS: dict[ProjectName, Project] = {"octo": OCTO, "crossformer": CROSSFORMER, "openvla": OPENVLA, "xgym": XGYM}
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
        return PROJECTS[checks.choice(source, ProjectName, "source")]
    projects = list(PROJECTS.values())
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
