"""`make_dataset_from_lerobot`: the trajectories of a LeRobot data set as a `TrajectoryDataset`."""

from __future__ import annotations

import os
from typing import Any

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.trajectory.config_values import accept_configs
from bushel._src.trajectory.dataset import TrajectoryDataset
from bushel._src.trajectory.dataset_from_rlds import make_dataset_from_rlds
from bushel._src.trajectory.lerobot.table import BadEpisodes


@public("bushel.trajectory")
@accept_configs
def make_dataset_from_lerobot(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    train: bool,
    tolerance_s: float = 1e-4,
    on_error: BadEpisodes = "raise",
    **arguments: Any,
) -> tuple[TrajectoryDataset, dict[str, Any]]:
    """The normalised trajectories of a LeRobot data set, in the layout that transforms expect; and their statistics.

    Args:
      name, data_dir: the data set lies in `data_dir/name`, or is `data_dir` itself; `data_dir` may be a URL.
      train: True for the first 95 % of the episodes, False for the rest; `train_split` and `val_split` choose others.
      tolerance_s: the largest distance between the time of a row and that of its frame in a video, in seconds.
      on_error: "raise", "mask" or "drop" episodes whose videos do not fit to the rows, see `LeRobotSource`.
      arguments: all other arguments of `make_dataset_from_rlds`. Names of the observation are those of the features
        without "observation.": `image_obs_keys={"primary": "images.front"}`, `proprio_obs_keys={"arm": "state"}`. The
        text of the task is `language_key="language_instruction"`.
    """
    checks.choice(on_error, BadEpisodes, "on_error")
    options = {"tolerance_s": tolerance_s, "on_error": on_error}
    return make_dataset_from_rlds(name, data_dir, train=train, format="lerobot", format_options=options, **arguments)
