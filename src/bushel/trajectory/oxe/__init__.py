"""Open X-Embodiment: the data sets and mixtures of Octo, CrossFormer, OpenVLA and X-Gym, as data."""

from bushel._src.trajectory.oxe.projects import make_oxe_dataset_kwargs, make_oxe_dataset_kwargs_and_weights

__all__ = [
    "make_oxe_dataset_kwargs",
    "make_oxe_dataset_kwargs_and_weights",
]
