"""Data sets of episodes into another format: RLDS, or LeRobot v3 with its videos."""

from bushel.trajectory.conversion.episode_conversion import convert_episodes
from bushel.trajectory.conversion.video_reencoding import reencode_videos

__all__ = ["convert_episodes", "reencode_videos"]
