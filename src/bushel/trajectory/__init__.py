"""Robot trajectories: episodes as tables, training samples as windows of them, and CrossFormer's pipeline on top.

Names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bushel.base import hints as _hints

if TYPE_CHECKING:
    from bushel.trajectory import (
        data_utils,
        goal_relabeling,
        obs_transforms,
        oxe,
        task_augmentation,
        text_processing,
        traj_transforms,
    )
    from bushel.trajectory.augmentations import augment_image
    from bushel.trajectory.conversion import convert_episodes, reencode_videos
    from bushel.trajectory.data_utils import BadTrajectory
    from bushel.trajectory.dataset import TrajectoryDataset
    from bushel.trajectory.dataset_from_lerobot import make_dataset_from_lerobot
    from bushel.trajectory.dataset_from_rlds import make_dataset_from_rlds
    from bushel.trajectory.dataset_transforms import apply_frame_transforms, apply_trajectory_transforms
    from bushel.trajectory.device_augmentations import augment_images
    from bushel.trajectory.episode_builder import EpisodeBuilder
    from bushel.trajectory.episode_formats import open_episodes
    from bushel.trajectory.episodes import Episodes
    from bushel.trajectory.frame_windows import Windows
    from bushel.trajectory.lerobot import LeRobotSource
    from bushel.trajectory.lerobot.dataset_folder import Feature
    from bushel.trajectory.loader import (
        LoaderIterator,
        TrajectoryLoader,
        build_dataset_from_config,
        get_dataloader,
        get_dataset,
    )
    from bushel.trajectory.mixture_config import DatasetConfig, MixtureConfig
    from bushel.trajectory.module_spec import ModuleSpec
    from bushel.trajectory.normalization import (
        NormalizationType,
        normalize,
        normalize_action_and_proprio,
        unnormalize,
        unnormalize_action_and_proprio,
    )
    from bushel.trajectory.offset_windows import window_frames
    from bushel.trajectory.oxe import make_oxe_dataset_kwargs, make_oxe_dataset_kwargs_and_weights
    from bushel.trajectory.oxe.registry import NotTrained
    from bushel.trajectory.pipelines import create_validation_dataset, make_interleaved_dataset, make_single_dataset
    from bushel.trajectory.pixels import decode_depth, decode_image, resize_depth_image, resize_image
    from bushel.trajectory.rlds import RLDSBuilder, write_rlds
    from bushel.trajectory.statements import StatementError
    from bushel.trajectory.statistics import (
        Statistics,
        get_dataset_statistics,
        load_statistics,
        save_statistics,
    )
    from bushel.trajectory.text_processing import CLIPTextProcessor, HFTokenizer, TextProcessor, process_text

_MODULES = {
    "augmentations": "augment_image",
    "conversion": "convert_episodes reencode_videos",
    "data_utils": "BadTrajectory",
    "dataset": "TrajectoryDataset",
    "dataset_from_lerobot": "make_dataset_from_lerobot",
    "dataset_from_rlds": "make_dataset_from_rlds",
    "dataset_transforms": "apply_frame_transforms apply_trajectory_transforms",
    "device_augmentations": "augment_images",
    "episode_builder": "EpisodeBuilder",
    "episode_formats": "open_episodes",
    "episodes": "Episodes",
    "frame_windows": "Windows",
    "lerobot": "LeRobotSource",
    "lerobot.dataset_folder": "Feature",
    "loader": "LoaderIterator TrajectoryLoader build_dataset_from_config get_dataloader get_dataset",
    "mixture_config": "DatasetConfig MixtureConfig",
    "module_spec": "ModuleSpec",
    "normalization": "NormalizationType normalize unnormalize "
    "normalize_action_and_proprio unnormalize_action_and_proprio",
    "offset_windows": "window_frames",
    "oxe": "make_oxe_dataset_kwargs make_oxe_dataset_kwargs_and_weights",
    "oxe.registry": "NotTrained",
    "pipelines": "create_validation_dataset make_interleaved_dataset make_single_dataset",
    "pixels": "decode_depth decode_image resize_depth_image resize_image",
    "rlds": "RLDSBuilder write_rlds",
    "statements": "StatementError",
    "statistics": "Statistics get_dataset_statistics load_statistics save_statistics",
    "text_processing": "CLIPTextProcessor HFTokenizer TextProcessor process_text",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "BadTrajectory",
    "CLIPTextProcessor",
    "DatasetConfig",
    "EpisodeBuilder",
    "Episodes",
    "Feature",
    "HFTokenizer",
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


if not TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> Any:
        """Loads the module of a name that is asked for the first time."""
        if name not in __all__:
            raise _hints.no_attribute(_hints.missing_in_module(__name__, name, __all__), name)
        module = importlib.import_module(f"{__name__}.{_WHERE.get(name, name)}")
        value = getattr(module, name) if name in _WHERE else module
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
