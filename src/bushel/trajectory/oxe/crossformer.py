"""The names of `crossformer.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from bushel._src.trajectory.oxe.projects import CROSSFORMER as _CROSSFORMER
from bushel._src.trajectory.oxe.projects import CrossFormerActionEncoding as ActionEncoding
from bushel._src.trajectory.oxe.projects import CrossFormerProprioEncoding as ProprioEncoding
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

OXE_DATASET_CONFIGS = _CROSSFORMER.configs
"""How each data set of CrossFormer is read: its cameras, its proprioception, its actions."""
OXE_STANDARDIZATION_TRANSFORMS = _CROSSFORMER.transforms
"""The function that standardizes the trajectories of each data set."""
OXE_NAMED_MIXES = _CROSSFORMER.mixes
"""Mixtures by name: data sets with their weights."""
make_oxe_dataset_kwargs = _CROSSFORMER.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = _CROSSFORMER.make_kwargs_and_weights

__getattr__ = _CROSSFORMER.get_function  # a function of standardisation, by its name
