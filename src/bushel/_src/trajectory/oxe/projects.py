"""The tables and encodings of Octo, CrossFormer, OpenVLA and X-Gym, each under the names of its own package."""

from __future__ import annotations

import enum
import os
from typing import Any

from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.normalization import NormalizationType, Scaling
from bushel._src.trajectory.oxe.registry import Mix, Views, load_project


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
    """The arguments of `make_dataset_from_rlds` for a data set, with the names and defaults of OpenVLA's function."""
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
    """The arguments and weights of a mixture, with the names and defaults of OpenVLA's function."""
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
