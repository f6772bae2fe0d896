"""LeRobot data sets (v2.0, v2.1 and v3.0) without lerobot and torch: Parquet rows with videos or images beside them."""

from bushel.trajectory.lerobot.builder import LeRobotBuilder, LeRobotEpisodes
from bushel.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel.trajectory.lerobot.source import LeRobotSource

__all__ = ["LeRobotBuilder", "LeRobotEpisodes", "LeRobotFolder", "LeRobotSource"]
