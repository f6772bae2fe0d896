"""The names of `octo.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from bushel._src.trajectory.oxe.octo import (
    OXE_DATASET_CONFIGS,
    OXE_FULL_MIX,
    OXE_NAMED_MIXES,
    OXE_STANDARDIZATION_TRANSFORMS,
    ActionEncoding,
    ProprioEncoding,
    make_oxe_dataset_kwargs,
    make_oxe_dataset_kwargs_and_weights,
)
from bushel._src.trajectory.oxe.octo import PROJECT as _PROJECT

__all__ = [
    "ActionEncoding",
    "OXE_DATASET_CONFIGS",
    "OXE_FULL_MIX",
    "OXE_NAMED_MIXES",
    "OXE_STANDARDIZATION_TRANSFORMS",
    "ProprioEncoding",
    "make_oxe_dataset_kwargs",
    "make_oxe_dataset_kwargs_and_weights",
]

__getattr__ = _PROJECT.get_function  # a function of standardisation, by its name
