"""The tables of X-Gym, a fork of CrossFormer with data of hands and of one arm, with the names of the fork."""

from bushel._src.trajectory.oxe.projects import XGYM as _XGYM
from bushel._src.trajectory.oxe.projects import XGymActionDim as ActionDim
from bushel._src.trajectory.oxe.projects import XGymActionEncoding as ActionEncoding
from bushel._src.trajectory.oxe.projects import XGymProprioDim as ProprioDim
from bushel._src.trajectory.oxe.projects import XGymProprioEncoding as ProprioEncoding

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

OXE_DATASET_CONFIGS = _XGYM.configs
"""How each data set of X-Gym is read: its cameras, its proprioception, its actions."""
OXE_STANDARDIZATION_TRANSFORMS = _XGYM.transforms
"""The function that standardizes the trajectories of each data set."""
OXE_NAMED_MIXES = _XGYM.mixes
"""Mixtures by name: data sets with their weights."""
make_oxe_dataset_kwargs = _XGYM.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = _XGYM.make_kwargs_and_weights

__getattr__ = _XGYM.get_function  # a function of standardisation, by its name
