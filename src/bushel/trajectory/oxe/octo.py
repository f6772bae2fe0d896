"""The names of `octo.data.oxe`: tables, encodings, and each standardisation by its function's name."""

from bushel._src.trajectory.oxe.projects import OCTO as _OCTO
from bushel._src.trajectory.oxe.projects import OCTO_FULL_MIX as OXE_FULL_MIX
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

OXE_DATASET_CONFIGS = _OCTO.configs
OXE_STANDARDIZATION_TRANSFORMS = _OCTO.transforms
OXE_NAMED_MIXES = _OCTO.mixes
make_oxe_dataset_kwargs = _OCTO.make_dataset_kwargs
make_oxe_dataset_kwargs_and_weights = _OCTO.make_kwargs_and_weights

__getattr__ = _OCTO.get_function  # a function of standardisation, by its name
