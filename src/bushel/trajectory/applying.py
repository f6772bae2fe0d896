"""The transforms of trajectories and frames as the original applies them, with its keyword arguments."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.dataset import MapDataset
from bushel.trajectory import goal_relabeling, task_augmentation
from bushel.trajectory.columns import Numbers
from bushel.trajectory.compat import faithful
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.functions import Function, instantiated, listed
from bushel.trajectory.obs_transforms import augment, decode_and_resize, image_dropout, over_window
from bushel.trajectory.passes import verdicts
from bushel.trajectory.plain import as_mapping, takes_configs
from bushel.trajectory.restructure import Tree
from bushel.trajectory.samples import LANGUAGES, Samples, Transforms
from bushel.trajectory.task_augmentation import Rephraser
from bushel.trajectory.windows import Windows


@takes_configs
def apply_trajectory_transforms(
    dataset: TrajectoryDataset,
    *,
    train: bool,
    goal_relabeling_strategy: str | None = None,
    goal_relabeling_kwargs: Mapping[str, Any] | None = None,
    window_size: int = 1,
    override_window_size: int | None = None,
    action_horizon: int = 1,
    subsample_length: int | None = None,
    skip_unlabeled: bool = False,
    max_action: float | None = None,
    max_proprio: float | None = None,
    task_augment_strategy: str | None = None,
    task_augment_kwargs: Mapping[str, Any] | None = None,
    max_action_dim: int | None = None,
    max_proprio_dim: int | None = None,
    post_chunk_transforms: Sequence[Function] | Function | None = (),
    num_parallel_calls: int | None = None,
    head_to_dataset: Mapping[str, Sequence[str]] | None = None,
    frame_filter: Function | None = None,
    compat: str | None = None,
) -> TrajectoryDataset:
    """Filters, goals, windows of observations and chunks of actions, masks: what makes samples of trajectories.

    Args:
      dataset: of trajectories, not flattened.
      train: only then are tasks augmented and trajectories subsampled.
      goal_relabeling_strategy, goal_relabeling_kwargs: "uniform", {"max_goal_distance": n}: a later frame is the goal.
      window_size, action_horizon: frames of history, and actions to come, of a sample.
      override_window_size: all but so many of the last slots of a window are declared padding.
      subsample_length: at most so many samples of a trajectory, other ones in every epoch.
      skip_unlabeled: leaves out trajectories without any instruction; of several that match `language_key`, one is
        drawn that the trajectory has.
      max_action, max_proprio: leave out trajectories with a larger number, after normalisation.
      task_augment_strategy, task_augment_kwargs: "delete_task_conditioning", "rephrase_instruction" or
        "delete_and_rephrase", and their arguments: paraphrases as `pickle_file_path`, or Octo's `paraphrases_repo` and
        `paraphrases_filename`.
      max_action_dim, max_proprio_dim: widths to which actions and proprioception are filled up with zeros, masked.
      post_chunk_transforms: functions of the trajectory after all this. One that looks at each step by itself should
        say so (`function.rowwise = True`): the others need whole trajectories, which is slow after a shuffle.
      num_parallel_calls: a hint for how many threads work.
      head_to_dataset: for each head of the model, the names of its data sets.
      frame_filter: of a trajectory, one bool per frame: which of them are samples. Windows still see the others.
      compat: "crossformer" for the original's masks and filters; by default as the data set was made.
    """
    dataset.refuse_frames("apply_trajectory_transforms")
    samples = dataset.samples
    if samples is None or samples.row_functions:
        dataset = dataset.as_table()
        samples = dataset.samples
    assert samples is not None
    _check_layout(samples.episodes.columns, samples.transforms is not None)
    compat = samples.compat if compat is None else compat
    if override_window_size is not None and not faithful(compat):
        checks.positive(override_window_size, "override_window_size")
    transforms = Transforms(
        Windows(window_size, action_horizon, override_window_size, compat),
        **_goals(goal_relabeling_strategy, goal_relabeling_kwargs or {}),
        **(_tasks(task_augment_strategy, task_augment_kwargs or {}, compat) if train else {}),
        subsample_length=subsample_length,
        max_action_dim=max_action_dim,
        max_proprio_dim=max_proprio_dim,
        head_to_dataset=head_to_dataset,
    )
    if not train:
        transforms = dataclasses.replace(transforms, subsample_length=None)
    several = LANGUAGES in samples.episodes.columns.get("task", {})
    samples = dataclasses.replace(samples, compat=compat, labelled_only=skip_unlabeled and several)
    chosen = samples.chosen[_passing(samples, skip_unlabeled, max_action, max_proprio)]
    filters = {"skip_unlabeled": skip_unlabeled or None, "max_action": max_action, "max_proprio": max_proprio}
    _refuse_nothing(chosen, samples, len(samples.chosen), "trajectory", "trajectories", filters)
    samples = dataclasses.replace(samples, chosen=chosen)
    if frame_filter is not None:
        frames = len(samples)
        samples = dataclasses.replace(samples, kept=_kept_frames(samples, instantiated(frame_filter)))
        _refuse_nothing(samples, samples, frames, "frame", "frames", {"frame_filter": frame_filter})
    made = dataset.with_samples(dataclasses.replace(samples, transforms=transforms)).with_threads(num_parallel_calls)
    for function in map(instantiated, listed(post_chunk_transforms)):
        made = made.traj_map(function)
    return made


def _check_layout(columns: Mapping[str, Any], transformed: bool) -> None:
    """Refuses trajectories that are transformed already, and dicts where transforms work on arrays."""
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
                f"{name} is a dict with {sorted(column)}, but transforms work on arrays: make it one, or several with "
                "names of their own, by traj_map for example."
            )


def _goals(strategy: str | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if strategy is None:
        return {}
    _known(strategy, goal_relabeling, ("uniform",), kwargs, {"max_goal_distance"})
    return {"relabel_goals": True, **kwargs}


def _tasks(strategy: str | None, kwargs: Mapping[str, Any], compat: str | None) -> dict[str, Any]:
    if strategy is None:
        return {}
    takes = {
        "delete_task_conditioning": {"keep_image_prob"},
        "rephrase_instruction": {"pickle_file_path", "rephrase_prob"},
        "delete_and_rephrase": {"pickle_file_path", "rephrase_prob", "keep_image_prob"},
    }
    found = dict(kwargs)
    if "pickle_file_path" in takes.get(strategy, ()) and {"paraphrases_repo", "paraphrases_filename"} & set(found):
        octo = [found.pop(name, None) for name in ("paraphrases_repo", "paraphrases_filename")]
        found["pickle_file_path"] = task_augmentation.chosen_paraphrases(found.get("pickle_file_path"), *octo)
    _known(strategy, task_augmentation, tuple(takes), found, takes.get(strategy, set()), needed=True)
    if "pickle_file_path" in found:
        given = found.pop("pickle_file_path")
        found["rephraser"] = given if isinstance(given, Rephraser) else Rephraser(given, compat)
    return found


def _known(
    strategy: str, module: Any, names: tuple[str, ...], given: Mapping[str, Any], takes: set[str], needed: bool = False
) -> None:
    where = module.__name__.rpartition(".")[2]
    if strategy not in names:
        raise ValueError(f"{where} has no strategy {strategy!r}; there is {', '.join(map(repr, names))}.")
    if set(given) - takes or (needed and takes - set(given)):
        raise ValueError(f"{where}: {strategy} takes {sorted(takes)}, got {sorted(given)}.")


def _passing(samples: Samples, skip_unlabeled: bool, max_action: float | None, max_proprio: float | None) -> np.ndarray:
    """Which of the chosen episodes pass the filters, one bool for each."""
    table = samples.episodes
    passing = np.ones(len(table), dtype=bool)
    if skip_unlabeled:
        passing &= samples.any_label()
    if max_action is not None:
        passing &= samples.largest("action") <= max_action
    if max_proprio is not None:
        observed = table.columns.get("observation", {})
        names = ["proprio"] if faithful(samples.compat) else [n for n in observed if n.partition("_")[0] == "proprio"]
        for name in names:
            if isinstance(observed.get(name), Numbers):
                passing &= samples.largest(name) <= max_proprio
    return passing[samples.chosen]


def _refuse_nothing(
    left: Sized, samples: Samples, before: int, one: str, several: str, filters: Mapping[str, Any]
) -> None:
    """Refuses a data set without a sample, which would give no batch, however long one waits."""
    if not len(left):
        told = ", ".join(f"{name}={value}" for name, value in filters.items() if value is not None)
        why = f"{told} refuses all {before} {several}" if before else "there was none before the transforms"
        raise ValueError(f"No {one} of {samples.name} is left: {why}. Loosen the filter, or leave the data set out.")


def _kept_frames(samples: Samples, frame_filter: Callable[[Tree], Any]) -> np.ndarray:
    kept = np.zeros(samples.episodes.frames, dtype=bool)
    trajectories = MapDataset.range(len(samples.chosen)).map_with_index(samples.trajectory)
    for number, verdict in verdicts(trajectories, frame_filter, "frame_filter"):
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


@dataclasses.dataclass(frozen=True)
class FrameTransforms:
    """What is done to the images of a frame, as a function of the frame and a generator of its own.

    The task and all steps of the window share one seed: they are cropped, coloured and dropped alike.
    """

    train: bool
    image_augment_kwargs: Mapping[str, Any]
    resize_size: Any
    depth_resize_size: Any
    image_dropout_prob: float
    image_dropout_keep_key: str | None
    compat: str | None

    def __call__(self, frame: Tree, rng: np.random.Generator) -> Tree:
        seed = int(rng.integers(1 << 63))
        return {
            **frame,
            "observation": self._changed(frame["observation"], over_window(self._images), seed),
            "task": self._changed(frame.get("task", {}), self._images, seed),
        }

    def _changed(self, tree: Tree, change: Callable[[Tree, int], Tree], seed: int) -> Tree:
        images = {name: leaf for name, leaf in tree.items() if name.startswith(("image_", "depth_"))}
        if not images:
            return tree
        if "pad_mask_dict" not in tree:
            raise ValueError(
                f"There is no pad_mask_dict beside {', '.join(images)}, which tells images from padding: call "
                "apply_trajectory_transforms before apply_frame_transforms."
            )
        masks = {name: mask for name, mask in tree["pad_mask_dict"].items() if name in images}
        changed = change({**images, "pad_mask_dict": masks}, seed)
        return {**tree, **changed, "pad_mask_dict": {**tree["pad_mask_dict"], **changed["pad_mask_dict"]}}

    def _images(self, obs: Tree, seed: int) -> Tree:
        obs = decode_and_resize(obs, self.resize_size, self.depth_resize_size, compat=self.compat)
        if not self.train:
            return obs
        if self.image_dropout_prob:
            obs = image_dropout(obs, seed, self.image_dropout_prob, self.image_dropout_keep_key, compat=self.compat)
        return augment(obs, seed, self.image_augment_kwargs, compat=self.compat) if self.image_augment_kwargs else obs


@takes_configs
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
    compat: str | None = None,
) -> TrajectoryDataset:
    """Decodes and resizes the images of each frame; when training, also drops some and augments the rest.

    Args:
      dataset: of frames; or of trajectories, whose frames are then transformed one by one.
      train: only then are images dropped and augmented.
      image_augment_kwargs: "augment_order" and arguments of its operations, for all images or by name.
      resize_size, depth_resize_size: (height, width) for all, or by name.
      image_dropout_prob, image_dropout_keep_key: how often an image is dropped, and the one that never is.
      num_parallel_calls: a hint for how many threads work.
      seed: of the draws; each belongs to the frame and the epoch.
      compat: "crossformer" for the shapes and draws of the original; by default as the data set was made.
    """
    augmented = dict(as_mapping(image_augment_kwargs or {}, "image_augment_kwargs"))
    if train and not faithful(compat):
        _check_augmented(augmented, dataset.image_names)
    change = FrameTransforms(
        bool(train),
        augmented,
        _sizes(resize_size, "resize_size"),
        _sizes(depth_resize_size, "depth_resize_size"),
        image_dropout_prob,
        image_dropout_keep_key,
        dataset.compat if compat is None else compat,
    )
    return dataset.with_threads(num_parallel_calls).random_frame_map(change, seed=seed)


def _check_augmented(asked: Mapping[str, Any], images: Sequence[str] | None) -> None:
    """Refuses what would augment nothing: no order of operations, or names that no image has, where these are known."""
    if not asked or "augment_order" in asked:
        return
    if not all(isinstance(own, Mapping) and "augment_order" in own for own in asked.values()):
        raise ValueError(
            "image_augment_kwargs needs an 'augment_order', the names of its operations in their order: at the top, "
            f"for all images, or in the arguments of each image. It has {asked}."
        )
    others = [name for name in asked if images and name not in images]
    if others:
        told = f"image_augment_kwargs has {', '.join(others)}; the images are {', '.join(images or ())}."
        if len(others) == len(asked):
            raise ValueError(f"{told} Nothing would be augmented.")
        warnings.warn(told, stacklevel=4)


def _sizes(asked: Any, what: str) -> Any:
    """Sizes of images as they were given, checked: (height, width), or these by name."""
    if asked is None:
        return {}
    for name, size in asked.items() if isinstance(asked, Mapping) else [(None, asked)]:
        if size is not None and (isinstance(size, str) or np.shape(size) != (2,)):
            where = what if name is None else f"{what}[{name!r}]"
            raise ValueError(f"{where} must be (height, width), or such pairs by the name of the image; got {size!r}.")
    return asked
