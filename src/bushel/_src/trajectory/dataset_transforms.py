"""The transforms of a `TrajectoryDataset`, under the names and with the keyword arguments of the original.

`samples.py` computes the transforms of trajectories, `obs_transforms.py` those of frames.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import BushelWarning
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.trajectory import task_augmentation
from bushel._src.trajectory.config_values import Function, accept_configs, as_mapping, list_functions, load_function
from bushel._src.trajectory.data_utils import Compat, Tree, reproduces_faults
from bushel._src.trajectory.episodes import Numbers
from bushel._src.trajectory.obs_transforms import augment, decode_and_resize, image_dropout, over_window
from bushel._src.trajectory.samples import LANGUAGES, Samples, Transforms
from bushel._src.trajectory.single_pass import evaluate_once
from bushel._src.trajectory.task_augmentation import Rephraser
from bushel._src.trajectory.traj_transforms import Windows, list_proprio_names
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset


@public("bushel.trajectory")
@accept_configs
def apply_trajectory_transforms(
    dataset: TrajectoryDataset,
    *,
    train: bool,
    goal_relabeling_strategy: Literal["uniform"] | None = None,
    goal_relabeling_kwargs: Mapping[str, Any] | None = None,
    window_size: int = 1,
    override_window_size: int | None = None,
    action_horizon: int = 1,
    subsample_length: int | None = None,
    skip_unlabeled: bool = False,
    max_action: float | None = None,
    max_proprio: float | None = None,
    task_augment_strategy: TaskStrategy | None = None,
    task_augment_kwargs: Mapping[str, Any] | None = None,
    max_action_dim: int | None = None,
    max_proprio_dim: int | None = None,
    post_chunk_transforms: Sequence[Function] | Function | None = (),
    num_parallel_calls: int | None = None,
    head_to_dataset: Mapping[str, Sequence[str]] | None = None,
    frame_filter: Function | None = None,
    compat: Compat | None = None,
) -> TrajectoryDataset:
    """Turn trajectories into samples: filters, goals, windows of observations, chunks of actions, masks.

    Args:
      dataset: trajectories, not flattened.
      train: True also augments tasks and subsamples trajectories.
      goal_relabeling_strategy, goal_relabeling_kwargs: "uniform", {"max_goal_distance": n}: a later frame is the goal.
      window_size, action_horizon: numbers of past frames and of future actions of a sample.
      override_window_size: only so many of the last slots of a window count as data; the others count as padding.
      subsample_length: at most so many samples per trajectory, other ones in every epoch.
      skip_unlabeled: leaves out trajectories without any instruction. Where several keys match `language_key`, a
        trajectory draws only from instructions that it has.
      max_action, max_proprio: leave out trajectories with a larger absolute value, after normalisation.
      task_augment_strategy, task_augment_kwargs: "delete_task_conditioning", "rephrase_instruction" or
        "delete_and_rephrase", and their arguments: paraphrases as `pickle_file_path`, or Octo's `paraphrases_repo` and
        `paraphrases_filename`.
      max_action_dim, max_proprio_dim: widths to which actions and proprioception are padded with masked zeros.
      post_chunk_transforms: functions of the trajectory, applied last. Set `function.rowwise = True` for a function
        that looks at each step by itself. Other functions need whole trajectories, which is slow after a shuffle.
      num_parallel_calls: a hint for the number of threads.
      head_to_dataset: for each head of the model, the names of its data sets.
      frame_filter: a function of a trajectory that returns one bool per frame: which frames are samples. Windows still
        contain the other frames.
      compat: "crossformer" for the original's masks and filters; by default the `compat` of the dataset.
    """
    dataset._refuse_frames("apply_trajectory_transforms")
    samples = dataset._samples
    if samples is None or samples.row_functions:
        dataset = dataset.as_table()
        samples = dataset._samples
    assert samples is not None
    _check_layout(samples.episodes.columns, samples.transforms is not None)
    compat = samples.compat if compat is None else compat
    if override_window_size is not None and not reproduces_faults(compat):
        checks.positive(override_window_size, "override_window_size")
    transforms = Transforms(
        Windows(window_size, action_horizon, override_window_size, compat),
        **_parse_goal_strategy(goal_relabeling_strategy, goal_relabeling_kwargs or {}),
        **(_parse_task_strategy(task_augment_strategy, task_augment_kwargs or {}, compat) if train else {}),
        subsample_length=subsample_length,
        max_action_dim=max_action_dim,
        max_proprio_dim=max_proprio_dim,
        head_to_dataset=head_to_dataset,
    )
    if not train:
        transforms = dataclasses.replace(transforms, subsample_length=None)
    several = LANGUAGES in samples.episodes.columns.get("task", {})
    samples = dataclasses.replace(samples, compat=compat, labelled_only=skip_unlabeled and several)
    chosen = samples.chosen[_filter_episodes(samples, skip_unlabeled, max_action, max_proprio)]
    filters = {"skip_unlabeled": skip_unlabeled or None, "max_action": max_action, "max_proprio": max_proprio}
    _check_not_empty(chosen, samples, len(samples.chosen), "trajectory", "trajectories", filters)
    samples = dataclasses.replace(samples, chosen=chosen)
    if frame_filter is not None:
        frames = len(samples)
        samples = dataclasses.replace(samples, kept=_filter_frames(samples, load_function(frame_filter)))
        _check_not_empty(samples, samples, frames, "frame", "frames", {"frame_filter": frame_filter})
    dataset = dataset._with_samples(dataclasses.replace(samples, transforms=transforms))._with_threads(
        num_parallel_calls
    )
    for function in map(load_function, list_functions(post_chunk_transforms)):
        dataset = dataset.traj_map(function)
    return dataset


def _check_layout(columns: Mapping[str, Any], transformed: bool) -> None:
    """Raise ValueError for trajectories that were transformed before, and for dicts where transforms need arrays."""
    observed = columns.get("observation", {})
    if transformed or "timestep_pad_mask" in observed:
        raise ValueError(
            "apply_trajectory_transforms was applied to this dataset before. Give all arguments in one call."
        )
    parts = {"action": columns.get("action"), **{f"observation/{name}": column for name, column in observed.items()}}
    parts |= {f"task/{name}": column for name, column in columns.get("task", {}).items() if name != LANGUAGES}
    for name, column in parts.items():
        if isinstance(column, Mapping):
            raise ValueError(
                f"{name} is a dict with {sorted(column)}, but transforms need an array. Make it one array, or several "
                "entries with names of their own, with traj_map for example."
            )


TaskStrategy = Literal["delete_task_conditioning", "rephrase_instruction", "delete_and_rephrase"]


def _parse_goal_strategy(strategy: str | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if strategy is None:
        return {}
    _check_strategy(strategy, "goal_relabeling", ("uniform",), kwargs, {"max_goal_distance"})
    return {"relabel_goals": True, **kwargs}


def _parse_task_strategy(strategy: str | None, kwargs: Mapping[str, Any], compat: Compat | None) -> dict[str, Any]:
    if strategy is None:
        return {}
    takes = {
        "delete_task_conditioning": {"keep_image_prob"},
        "rephrase_instruction": {"pickle_file_path", "rephrase_prob"},
        "delete_and_rephrase": {"pickle_file_path", "rephrase_prob", "keep_image_prob"},
    }
    arguments = dict(kwargs)
    if "pickle_file_path" in takes.get(strategy, ()) and {"paraphrases_repo", "paraphrases_filename"} & set(arguments):
        octo = [arguments.pop(name, None) for name in ("paraphrases_repo", "paraphrases_filename")]
        arguments["pickle_file_path"] = task_augmentation.choose_paraphrases(arguments.get("pickle_file_path"), *octo)
    _check_strategy(strategy, "task_augmentation", tuple(takes), arguments, takes.get(strategy, set()), needed=True)
    if "pickle_file_path" in arguments:
        given = arguments.pop("pickle_file_path")
        arguments["rephraser"] = given if isinstance(given, Rephraser) else Rephraser(given, compat)
    return arguments


def _check_strategy(
    strategy: str, where: str, names: tuple[str, ...], given: Mapping[str, Any], takes: set[str], needed: bool = False
) -> None:
    checks.choice(strategy, names, f"The strategy of {where}")
    if set(given) - takes or (needed and takes - set(given)):
        raise ValueError(f"{where}: {strategy} takes {sorted(takes)}, got {sorted(given)}.")


def _filter_episodes(
    samples: Samples, skip_unlabeled: bool, max_action: float | None, max_proprio: float | None
) -> np.ndarray:
    """Return one bool per chosen episode: whether it passes the filters."""
    table = samples.episodes
    passing = np.ones(len(table), dtype=bool)
    if skip_unlabeled:
        passing &= samples.any_label()
    if max_action is not None:
        passing &= samples.largest("action") <= max_action
    if max_proprio is not None:
        observed = table.columns.get("observation", {})
        for name in list_proprio_names(observed, samples.compat):
            if isinstance(observed.get(name), Numbers):
                passing &= samples.largest(name) <= max_proprio
    return passing[samples.chosen]


def _check_not_empty(
    left: Sized, samples: Samples, before: int, one: str, several: str, filters: Mapping[str, Any]
) -> None:
    """Raise ValueError for a data set without samples: an endless mixture would wait for its first sample forever."""
    if not len(left):
        active = ", ".join(f"{name}={value}" for name, value in filters.items() if value is not None)
        if not before:
            raise ValueError(
                f"No {one} of {samples.name} is left: there was none before the transforms. Leave the data set out."
            )
        raise ValueError(
            f"No {one} of {samples.name} is left: {active} removes all {before} {several}. Loosen the filter, or leave "
            "the data set out."
        )


def _filter_frames(samples: Samples, frame_filter: Callable[[Tree], Any]) -> np.ndarray:
    kept = np.zeros(samples.episodes.frames, dtype=bool)
    trajectories = MapDataset.range(len(samples.chosen)).map_with_index(samples.trajectory)
    for number, verdict in evaluate_once(trajectories, frame_filter, "frame_filter"):
        episode = int(samples.chosen[number])
        start, length = int(samples.episodes.starts[episode]), int(samples.episodes.lengths[episode])
        verdict = np.asarray(verdict)
        if verdict.shape != (length,):
            raise ValueError(
                f"frame_filter must return one bool for each of the {length} frames of a trajectory; "
                f"it returned an array of the shape {verdict.shape}."
            )
        kept[start : start + length] = verdict.astype(bool)
    return kept


# Transforms of frames.


@in_states("frame_transforms")
@dataclasses.dataclass(frozen=True)
class FrameTransforms:
    """The transform of the images of a frame: a function of the frame and a generator.

    The task and all steps of the window share one seed, so that they get the same crop, colours and dropout.
    """

    train: bool
    image_augment_kwargs: Mapping[str, Any]
    resize_size: Any
    depth_resize_size: Any
    image_dropout_prob: float
    image_dropout_keep_key: str | None
    compat: Compat | None

    def __call__(self, frame: Tree, rng: np.random.Generator) -> Tree:
        seed = int(rng.integers(1 << 63))
        return {
            **frame,
            "observation": self._transform(frame["observation"], over_window(self._transform_images), seed),
            "task": self._transform(frame.get("task", {}), self._transform_images, seed),
        }

    def _transform(self, tree: Tree, change: Callable[[Tree, int], Tree], seed: int) -> Tree:
        images = {name: leaf for name, leaf in tree.items() if name.startswith(("image_", "depth_"))}
        if not images:
            return tree
        if "pad_mask_dict" not in tree:
            raise ValueError(
                f"There is no pad_mask_dict beside {', '.join(images)}, so padding cannot be recognised. Call "
                "apply_trajectory_transforms before apply_frame_transforms."
            )
        masks = {name: mask for name, mask in tree["pad_mask_dict"].items() if name in images}
        changed = change({**images, "pad_mask_dict": masks}, seed)
        return {**tree, **changed, "pad_mask_dict": {**tree["pad_mask_dict"], **changed["pad_mask_dict"]}}

    def _transform_images(self, obs: Tree, seed: int) -> Tree:
        obs = decode_and_resize(obs, self.resize_size, self.depth_resize_size, compat=self.compat)
        if not self.train:
            return obs
        if self.image_dropout_prob:
            obs = image_dropout(obs, seed, self.image_dropout_prob, self.image_dropout_keep_key, compat=self.compat)
        return augment(obs, seed, self.image_augment_kwargs, compat=self.compat) if self.image_augment_kwargs else obs


@public("bushel.trajectory")
@accept_configs
def apply_frame_transforms(
    dataset: TrajectoryDataset,
    *,
    train: bool,
    image_augment_kwargs: Mapping[str, Any] | None = None,
    resize_size: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    depth_resize_size: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    image_dropout_prob: float = 0.0,
    image_dropout_keep_key: str | None = None,
    num_parallel_calls: int | None = None,
    seed: int = 0,
    compat: Compat | None = None,
) -> TrajectoryDataset:
    """Decode and resize the images of each frame. For training it also drops some images and augments the others.

    Args:
      dataset: frames, or trajectories, whose frames are then transformed one by one.
      train: True also drops and augments images.
      image_augment_kwargs: "augment_order" and the arguments of its operations, for all images or by name.
      resize_size, depth_resize_size: (height, width) for all images, or a dict by name.
      image_dropout_prob, image_dropout_keep_key: the probability that an image is dropped, and the image that is never
        dropped.
      num_parallel_calls: a hint for the number of threads.
      seed: the seed of the draws. A draw is a function of the seed, the frame and the epoch.
      compat: "crossformer" for the shapes and draws of the original; by default the `compat` of the dataset.
    """
    augmented = dict(as_mapping(image_augment_kwargs or {}, "image_augment_kwargs"))
    if train and not reproduces_faults(compat):
        _check_augmented(augmented, dataset.image_names)
    change = FrameTransforms(
        bool(train),
        augmented,
        _check_sizes(resize_size, "resize_size"),
        _check_sizes(depth_resize_size, "depth_resize_size"),
        image_dropout_prob,
        image_dropout_keep_key,
        dataset.compat if compat is None else compat,
    )
    return dataset._with_threads(num_parallel_calls).random_frame_map(change, seed=seed)


def _check_augmented(asked: Mapping[str, Any], images: Sequence[str] | None) -> None:
    """Raise ValueError for arguments that augment nothing: no order of operations, or no name of an image."""
    if not asked or "augment_order" in asked:
        return
    if not all(isinstance(given, Mapping) and "augment_order" in given for given in asked.values()):
        raise ValueError(
            "image_augment_kwargs needs an 'augment_order', the names of its operations in their order: at the top, "
            f"for all images, or in the arguments of each image. It has {asked}."
        )
    others = [name for name in asked if images and name not in images]
    if others:
        message = f"image_augment_kwargs has {', '.join(others)}; the images are {', '.join(images or ())}."
        if len(others) == len(asked):
            raise ValueError(f"{message} Nothing would be augmented.")
        warnings.warn(message, BushelWarning, stacklevel=4)


def _check_sizes(asked: Any, what: str) -> Any:
    """Return the given sizes, after a check: (height, width), or a dict of such pairs by name."""
    if asked is None:
        return {}
    for name, size in asked.items() if isinstance(asked, Mapping) else [(None, asked)]:
        if size is not None and (isinstance(size, str) or np.shape(size) != (2,)):
            where = what if name is None else f"{what}[{name!r}]"
            raise ValueError(f"{where} must be (height, width), or such pairs by the name of the image; got {size!r}.")
    return asked
