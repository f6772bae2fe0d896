"""The names of `crossformer.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from bushel._src.trajectory.oxe.crossformer import (
    OXE_DATASET_CONFIGS,
    OXE_NAMED_MIXES,
    OXE_STANDARDIZATION_TRANSFORMS,
    ActionEncoding,
    ProprioEncoding,
    make_oxe_dataset_kwargs,
    make_oxe_dataset_kwargs_and_weights,
)
from bushel._src.trajectory.oxe.crossformer import PROJECT as _PROJECT
from bushel._src.trajectory.oxe.special_transforms import METRIC_WAYPOINT_SPACING

__all__ = [
    "ActionEncoding",
    "METRIC_WAYPOINT_SPACING",
    "OXE_DATASET_CONFIGS",
    "OXE_NAMED_MIXES",
    "OXE_STANDARDIZATION_TRANSFORMS",
    "ProprioEncoding",
    "make_oxe_dataset_kwargs",
    "make_oxe_dataset_kwargs_and_weights",
]

__getattr__ = _PROJECT.get_function  # a function of standardisation, by its name
