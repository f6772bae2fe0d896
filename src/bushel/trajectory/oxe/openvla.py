"""The names of `prismatic.vla.datasets.rlds.oxe`, which is OpenVLA's: tables, encodings, and each standardisation."""

from bushel._src.trajectory.oxe.openvla import (
    OXE_DATASET_CONFIGS,
    OXE_NAMED_MIXTURES,
    OXE_STANDARDIZATION_TRANSFORMS,
    ActionEncoding,
    StateEncoding,
    get_oxe_dataset_kwargs_and_weights,
    make_oxe_dataset_kwargs,
)
from bushel._src.trajectory.oxe.openvla import PROJECT as _PROJECT
from bushel._src.trajectory.oxe.special_transforms import zero_action_filter

__all__ = [
    "ActionEncoding",
    "OXE_DATASET_CONFIGS",
    "OXE_NAMED_MIXTURES",
    "OXE_STANDARDIZATION_TRANSFORMS",
    "StateEncoding",
    "get_oxe_dataset_kwargs_and_weights",
    "make_oxe_dataset_kwargs",
    "zero_action_filter",
]

__getattr__ = _PROJECT.get_function  # a function of standardisation, by its name
