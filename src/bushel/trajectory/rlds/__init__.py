"""RLDS data sets, the form in which TFDS keeps robot episodes: read and written without TensorFlow."""

from bushel.trajectory.rlds.reader import RLDSBuilder, RLDSEpisodes
from bushel.trajectory.rlds.writer import write_rlds

__all__ = ["RLDSBuilder", "RLDSEpisodes", "write_rlds"]
