"""Goal relabelling: a step gets a frame of its own future as its goal. Strategies are functions of this module."""

from bushel._src.trajectory.traj_transforms import uniform

__all__ = [
    "uniform",
]
