"""Mixtures over the golden RLDS folder: one set of episodes under several names, as robots that differ."""

from pathlib import Path
from typing import Any

import numpy as np

from bushel._src.trajectory.mixture_config import MixtureConfig
from helpers.golden_trajectories import GOLDEN

FRAMES = 119


def prepared(folder: Path, *names: str) -> str:
    """A folder with the data of robots of these names, and room for what is kept of them."""
    for name in names:
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / "1.0.0").symlink_to(GOLDEN / "tfds" / "synth_rlds" / "1.0.0")
    return str(folder)


def narrow(trajectory: dict[str, Any], width: int = 4) -> dict[str, Any]:
    """A standardize_fn: the robot has fewer actions."""
    return {**trajectory, "action": trajectory["action"][:, :width]}


def long_enough(trajectory: dict[str, Any]) -> bool:
    """A filter function."""
    return len(trajectory["action"]) >= 5


def even_frames(trajectory: dict[str, Any]) -> np.ndarray:
    """A filter of frames."""
    return np.arange(len(trajectory["action"])) % 2 == 0


def robot(name: str, cache: str, **fields: Any) -> dict[str, Any]:
    """The fields of one data set; `cache` is what `prepared` made."""
    known = {
        "data_dir": f"{cache}/data",
        "image_obs_keys": {"primary": "image", "wrist": "wrist_image"},
        "proprio_obs_keys": {"arm": "state"},
        "language_key": "language_instruction",
        "train_split": "train",
        "cache_dir": cache,
    }
    return {**known, "name": name, **fields}


AUGMENT = {
    "augment_order": ["random_resized_crop", "random_brightness", "random_hue"],
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.2],
    "random_hue": [0.1],
}


def mixture(cache: str, **fields: Any) -> MixtureConfig:
    """Two robots of 3 : 1 with all that is random: goals, lost tasks, subsampling, augmented and dropped images."""
    known = {
        "datasets": [
            robot("arm", cache, weight=3),
            robot("gripper", cache, image_obs_keys={"primary": "image"}, standardize_fn="helpers.robots:narrow"),
        ],
        "traj_transform_kwargs": {
            "window_size": 2,
            "action_horizon": 3,
            "goal_relabeling_strategy": "uniform",
            "task_augment_strategy": "delete_task_conditioning",
            "task_augment_kwargs": {"keep_image_prob": 0.5},
            "subsample_length": 10,
        },
        "frame_transform_kwargs": {
            "resize_size": [16, 16],
            "image_dropout_prob": 0.3,
            "image_augment_kwargs": AUGMENT,
        },
        "batch_size": 8,
        "seed": 5,
    }
    return MixtureConfig.from_dict({**known, **fields})
