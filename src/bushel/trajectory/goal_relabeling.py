"""Goal relabelling: a step gets a frame of its own future as its goal. Strategies are functions of this module."""

from bushel._src.trajectory.traj_transforms import choose_goals, uniform

__all__ = [
    "choose_goals",
    "uniform",
]
