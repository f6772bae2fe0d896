"""The tables of X-Gym, a fork of CrossFormer with data of hands and of one arm, with the names of the fork."""

from __future__ import annotations

import enum
from typing import Any

from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.oxe.registry import load_project


@public("bushel.trajectory.oxe.xgym")
@in_states("xgym.ProprioEncoding")
class ProprioEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4
    POS_NAV = 5
    QUADRUPED = 6
    MANO = 7


@public("bushel.trajectory.oxe.xgym")
@in_states("xgym.ActionEncoding")
class ActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT = 2  # another name of JOINT_POS
    JOINT_POS_BIMANUAL = 3
    NAV_2D = 4
    JOINT_POS_BIMANUAL_NAV = 5
    QUADRUPED = 6
    MANO = 7


@public("bushel.trajectory.oxe.xgym")
@in_states("xgym.ActionDim")
class ActionDim(enum.IntEnum):
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


@public("bushel.trajectory.oxe.xgym")
@in_states("xgym.ProprioDim")
class ProprioDim(enum.IntEnum):
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


PROJECT = load_project("xgym", ActionEncoding, ProprioEncoding)
OXE_DATASET_CONFIGS = PROJECT.configs
OXE_STANDARDIZATION_TRANSFORMS = PROJECT.transforms
OXE_NAMED_MIXES = PROJECT.mixes
make_oxe_dataset_kwargs = PROJECT.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = PROJECT.make_kwargs_and_weights


def __getattr__(name: str) -> Any:
    return PROJECT.get_function(name)
