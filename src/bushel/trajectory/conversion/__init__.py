"""Data sets of episodes into another format: RLDS, or LeRobot v3 with its videos."""

from bushel.trajectory.conversion.convert_episodes import convert_episodes
from bushel.trajectory.conversion.reencode_videos import reencode_videos

__all__ = ["convert_episodes", "reencode_videos"]
