"""The tables of X-Gym, a fork of CrossFormer with data of hands and of one arm, with the names of the fork."""

from bushel._src.trajectory.oxe.xgym import (
    OXE_DATASET_CONFIGS,
    OXE_NAMED_MIXES,
    OXE_STANDARDIZATION_TRANSFORMS,
    ActionDim,
    ActionEncoding,
    ProprioDim,
    ProprioEncoding,
    make_oxe_dataset_kwargs,
    make_oxe_dataset_kwargs_and_weights,
)
from bushel._src.trajectory.oxe.xgym import PROJECT as _PROJECT

__all__ = [
    "ActionDim",
    "ActionEncoding",
    "OXE_DATASET_CONFIGS",
    "OXE_NAMED_MIXES",
    "OXE_STANDARDIZATION_TRANSFORMS",
    "ProprioDim",
    "ProprioEncoding",
    "make_oxe_dataset_kwargs",
    "make_oxe_dataset_kwargs_and_weights",
]

__getattr__ = _PROJECT.get_function  # a function of standardisation, by its name
