"""The names of `crossformer.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from __future__ import annotations

import enum
from typing import Any

from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.oxe.registry import load_project
from bushel._src.trajectory.oxe.special_transforms import METRIC_WAYPOINT_SPACING as METRIC_WAYPOINT_SPACING


@public("bushel.trajectory.oxe.crossformer")
@in_states("crossformer.ProprioEncoding")
class ProprioEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4
    POS_NAV = 5
    QUADRUPED = 6


@public("bushel.trajectory.oxe.crossformer")
@in_states("crossformer.ActionEncoding")
class ActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT_POS_BIMANUAL = 3
    NAV_2D = 4
    JOINT_POS_BIMANUAL_NAV = 5
    QUADRUPED = 6


PROJECT = load_project("crossformer", ActionEncoding, ProprioEncoding)
OXE_DATASET_CONFIGS = PROJECT.configs
OXE_STANDARDIZATION_TRANSFORMS = PROJECT.transforms
OXE_NAMED_MIXES = PROJECT.mixes
make_oxe_dataset_kwargs = PROJECT.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = PROJECT.make_kwargs_and_weights


def __getattr__(name: str) -> Any:
    return PROJECT.get_function(name)
