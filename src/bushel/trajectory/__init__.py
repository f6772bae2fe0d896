"""Robot trajectories: episodes as tables, training samples as windows of them, and CrossFormer's pipeline on top.

Names are loaded when they are first used.
"""

import typing as _typing

from bushel._src.base.doors import open_door as _open_door

if _typing.TYPE_CHECKING:
    from bushel._src.trajectory.augmentations import augment_image, augment_images
    from bushel._src.trajectory.config_values import ModuleSpec
    from bushel._src.trajectory.data_utils import BadTrajectory
    from bushel._src.trajectory.dataset_statistics import (
        Statistics,
        get_dataset_statistics,
        load_statistics,
        save_statistics,
    )
    from bushel._src.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
    from bushel._src.trajectory.episode_builder import EpisodeBuilder, open_episodes
    from bushel._src.trajectory.episode_conversion import convert_episodes, reencode_videos
    from bushel._src.trajectory.episodes import Episodes
    from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFeature
    from bushel._src.trajectory.lerobot.reader import LeRobotSource
    from bushel._src.trajectory.make_dataset import make_dataset_from_lerobot, make_dataset_from_rlds
    from bushel._src.trajectory.mixture_config import DatasetConfig, MixtureConfig
    from bushel._src.trajectory.normalization import (
        NormalizationType,
        normalize,
        normalize_action_and_proprio,
        unnormalize,
        unnormalize_action_and_proprio,
    )
    from bushel._src.trajectory.oxe.projects import make_oxe_dataset_kwargs, make_oxe_dataset_kwargs_and_weights
    from bushel._src.trajectory.oxe.registry import NotTrained
    from bushel._src.trajectory.pixels import decode_depth, decode_image, resize_depth_image, resize_image
    from bushel._src.trajectory.rlds.reader import RLDSBuilder
    from bushel._src.trajectory.rlds.writer import write_rlds
    from bushel._src.trajectory.samples import window_frames
    from bushel._src.trajectory.standardization_steps import StatementError
    from bushel._src.trajectory.text_processing import CLIPTextProcessor, HFTokenizer, TextProcessor, process_text
    from bushel._src.trajectory.traj_transforms import Windows
    from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset
    from bushel._src.trajectory.trajectory_loader import (
        LoaderIterator,
        TrajectoryLoader,
        build_dataset_from_config,
        create_validation_dataset,
        get_dataloader,
        get_dataset,
        make_interleaved_dataset,
        make_single_dataset,
    )
    from bushel.trajectory import (
        data_utils,
        goal_relabeling,
        obs_transforms,
        oxe,
        task_augmentation,
        text_processing,
        traj_transforms,
    )

__all__ = [
    "BadTrajectory",
    "CLIPTextProcessor",
    "DatasetConfig",
    "EpisodeBuilder",
    "Episodes",
    "HFTokenizer",
    "LeRobotFeature",
    "LeRobotSource",
    "LoaderIterator",
    "MixtureConfig",
    "ModuleSpec",
    "NormalizationType",
    "NotTrained",
    "RLDSBuilder",
    "StatementError",
    "Statistics",
    "TextProcessor",
    "TrajectoryDataset",
    "TrajectoryLoader",
    "Windows",
    "apply_frame_transforms",
    "apply_trajectory_transforms",
    "augment_image",
    "augment_images",
    "build_dataset_from_config",
    "convert_episodes",
    "create_validation_dataset",
    "data_utils",
    "decode_depth",
    "decode_image",
    "get_dataloader",
    "get_dataset",
    "get_dataset_statistics",
    "goal_relabeling",
    "load_statistics",
    "make_dataset_from_lerobot",
    "make_dataset_from_rlds",
    "make_interleaved_dataset",
    "make_oxe_dataset_kwargs",
    "make_oxe_dataset_kwargs_and_weights",
    "make_single_dataset",
    "normalize",
    "normalize_action_and_proprio",
    "obs_transforms",
    "open_episodes",
    "oxe",
    "process_text",
    "reencode_videos",
    "resize_depth_image",
    "resize_image",
    "save_statistics",
    "task_augmentation",
    "text_processing",
    "traj_transforms",
    "unnormalize",
    "unnormalize_action_and_proprio",
    "window_frames",
    "write_rlds",
]

_MODULES = {
    "trajectory.augmentations": "augment_image augment_images",
    "trajectory.config_values": "ModuleSpec",
    "trajectory.data_utils": "BadTrajectory",
    "trajectory.dataset_statistics": "get_dataset_statistics load_statistics save_statistics Statistics",
    "trajectory.dataset_transforms": "apply_frame_transforms apply_trajectory_transforms",
    "trajectory.episode_builder": "EpisodeBuilder open_episodes",
    "trajectory.episode_conversion": "convert_episodes reencode_videos",
    "trajectory.episodes": "Episodes",
    "trajectory.lerobot.dataset_folder": "LeRobotFeature",
    "trajectory.lerobot.reader": "LeRobotSource",
    "trajectory.make_dataset": "make_dataset_from_lerobot make_dataset_from_rlds",
    "trajectory.mixture_config": "DatasetConfig MixtureConfig",
    "trajectory.normalization": (
        "NormalizationType normalize normalize_action_and_proprio unnormalize unnormalize_action_and_proprio"
    ),
    "trajectory.oxe.projects": "make_oxe_dataset_kwargs make_oxe_dataset_kwargs_and_weights",
    "trajectory.oxe.registry": "NotTrained",
    "trajectory.pixels": "decode_depth decode_image resize_depth_image resize_image",
    "trajectory.rlds.reader": "RLDSBuilder",
    "trajectory.rlds.writer": "write_rlds",
    "trajectory.samples": "window_frames",
    "trajectory.standardization_steps": "StatementError",
    "trajectory.text_processing": "CLIPTextProcessor HFTokenizer process_text TextProcessor",
    "trajectory.traj_transforms": "Windows",
    "trajectory.trajectory_dataset": "TrajectoryDataset",
    "trajectory.trajectory_loader": (
        "build_dataset_from_config create_validation_dataset get_dataloader get_dataset LoaderIterator "
        "make_interleaved_dataset make_single_dataset TrajectoryLoader"
    ),
}

if not _typing.TYPE_CHECKING:  # so that a type checker reports missing names
    __getattr__, __dir__ = _open_door(__name__, __all__, _MODULES)
