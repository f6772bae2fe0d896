"""The names of `prismatic.vla.datasets.rlds.oxe`, which is OpenVLA's: tables, encodings, and each standardisation."""

from __future__ import annotations

import enum
import os
from typing import Any

from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.normalization import NormalizationType, Scaling
from bushel._src.trajectory.oxe.registry import Mix, Views, load_project
from bushel._src.trajectory.oxe.special_transforms import zero_action_filter as zero_action_filter


@public("bushel.trajectory.oxe.openvla")
@in_states("openvla.StateEncoding")
class StateEncoding(enum.IntEnum):
    """What the numbers of the proprioception are. Only the documentation depends on it."""

    NONE = -1
    POS_EULER = 1
    POS_QUAT = 2
    JOINT = 3
    JOINT_BIMANUAL = 4


@public("bushel.trajectory.oxe.openvla")
@in_states("openvla.ActionEncoding")
class ActionEncoding(enum.IntEnum):
    """What the numbers of an action are. It determines which of them are normalised."""

    EEF_POS = 1
    JOINT_POS = 2
    JOINT_POS_BIMANUAL = 3
    EEF_R6 = 4


PROJECT = load_project("openvla", ActionEncoding, StateEncoding, masked=("EEF_POS", "EEF_R6"), is_openvla=True)
OXE_DATASET_CONFIGS = PROJECT.configs
OXE_STANDARDIZATION_TRANSFORMS = PROJECT.transforms
OXE_NAMED_MIXTURES = PROJECT.mixes


@public("bushel.trajectory.oxe.openvla")
def make_oxe_dataset_kwargs(
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
    return PROJECT.make_dataset_kwargs(
        dataset_name, data_root_dir, *loaded, action_proprio_normalization_type=action_proprio_normalization_type
    )


@public("bushel.trajectory.oxe.openvla")
def get_oxe_dataset_kwargs_and_weights(
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
    return PROJECT.make_kwargs_and_weights(
        mixture_spec, data_root_dir, *loaded, action_proprio_normalization_type=action_proprio_normalization_type
    )


def __getattr__(name: str) -> Any:
    return PROJECT.get_function(name)
