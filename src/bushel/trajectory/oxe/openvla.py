"""The names of `prismatic.vla.datasets.rlds.oxe`, which is OpenVLA's: tables, encodings, and each standardisation."""

from bushel._src.trajectory.oxe.projects import OPENVLA as _OPENVLA
from bushel._src.trajectory.oxe.projects import OpenVLAActionEncoding as ActionEncoding
from bushel._src.trajectory.oxe.projects import OpenVLAStateEncoding as StateEncoding
from bushel._src.trajectory.oxe.projects import make_openvla_kwargs as make_oxe_dataset_kwargs
from bushel._src.trajectory.oxe.projects import make_openvla_kwargs_and_weights as get_oxe_dataset_kwargs_and_weights
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

OXE_DATASET_CONFIGS = _OPENVLA.configs
"""How each data set of OpenVLA is read: its cameras, its proprioception, its actions."""
OXE_STANDARDIZATION_TRANSFORMS = _OPENVLA.transforms
"""The function that standardizes the trajectories of each data set."""
OXE_NAMED_MIXTURES = _OPENVLA.mixes
"""Mixtures by name: data sets with their weights."""

__getattr__ = _OPENVLA.get_function  # a function of standardisation, by its name
