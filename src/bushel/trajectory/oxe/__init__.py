"""Open X-Embodiment: the data sets and mixtures of Octo, CrossFormer, OpenVLA and X-Gym, as data."""

from bushel.trajectory.oxe.entry_points import make_oxe_dataset_kwargs as make_oxe_dataset_kwargs
from bushel.trajectory.oxe.entry_points import (
    make_oxe_dataset_kwargs_and_weights as make_oxe_dataset_kwargs_and_weights,
)

__all__ = ["make_oxe_dataset_kwargs", "make_oxe_dataset_kwargs_and_weights"]
