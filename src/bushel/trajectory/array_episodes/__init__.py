"""Episodes in files of plain arrays: HDF5 in the layouts of robomimic and ALOHA, and folders of `.npz` files."""

from bushel.trajectory.array_episodes.builder import ArrayEpisodes, ArrayEpisodesBuilder

__all__ = ["ArrayEpisodes", "ArrayEpisodesBuilder"]
