"""The names of `octo.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from bushel._src.trajectory.oxe.projects import OCTO as _OCTO
from bushel._src.trajectory.oxe.projects import OCTO_FULL_MIX as _OCTO_FULL_MIX
from bushel._src.trajectory.oxe.projects import OctoActionEncoding as ActionEncoding
from bushel._src.trajectory.oxe.projects import OctoProprioEncoding as ProprioEncoding

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

OXE_FULL_MIX = _OCTO_FULL_MIX
"""The data sets of Octo's largest mixture, with their weights."""
OXE_DATASET_CONFIGS = _OCTO.configs
"""How each data set of Octo is read: its cameras, its proprioception, its actions."""
OXE_STANDARDIZATION_TRANSFORMS = _OCTO.transforms
"""The function that standardizes the trajectories of each data set."""
OXE_NAMED_MIXES = _OCTO.mixes
"""Mixtures by name: data sets with their weights."""
make_oxe_dataset_kwargs = _OCTO.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = _OCTO.make_kwargs_and_weights

__getattr__ = _OCTO.get_function  # a function of standardisation, by its name
