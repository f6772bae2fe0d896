"""The transforms of trajectories and frames as the original applies them, with its keyword arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.dataset import MapDataset
from bushel.trajectory import goal_relabeling, task_augmentation
from bushel.trajectory.compat import faithful
from bushel.trajectory.dataset import TrajectoryDataset
from bushel.trajectory.episodes import Numbers
from bushel.trajectory.functions import Function, instantiated
from bushel.trajectory.passes import results
from bushel.trajectory.restructure import Tree
from bushel.trajectory.samples import Samples, Transforms
from bushel.trajectory.task_augmentation import Rephraser
from bushel.trajectory.windows import Windows


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
    post_chunk_transforms: Sequence[Function] = (),
    num_parallel_calls: int | None = None,
    head_to_dataset: Mapping[str, Sequence[str]] | None = None,
    frame_filter: Callable[[Tree], Any] | None = None,
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
      skip_unlabeled: leaves out trajectories without any instruction.
      max_action, max_proprio: leave out trajectories with a larger number, after normalisation.
      task_augment_strategy, task_augment_kwargs: "delete_task_conditioning", "rephrase_instruction" or
        "delete_and_rephrase", and their arguments.
      max_action_dim, max_proprio_dim: widths to which actions and proprioception are filled up with zeros, masked.
      post_chunk_transforms: functions of the trajectory after all this. One that looks at each step by itself should
        say so (`function.rowwise = True`): the others need whole trajectories, which is slow after a shuffle.
      num_parallel_calls: a hint for how many threads work.
      head_to_dataset: for each head of the model, the names of its data sets.
      frame_filter: of a trajectory, one bool per frame: which of them are samples. Windows still see the others.
      compat: "crossformer" for the original's masks and filters; by default as the data set was made.
    """
    samples = dataset.samples
    if samples is None or samples.transforms is not None or samples.row_functions:
        samples = dataset.as_table().samples
    assert samples is not None
    compat = samples.compat if compat is None else compat
    transforms = Transforms(
        Windows(window_size, action_horizon, override_window_size, compat),
        **_goals(goal_relabeling_strategy, goal_relabeling_kwargs or {}),
        **(_tasks(task_augment_strategy, task_augment_kwargs or {}, compat) if train else {}),
        subsample_length=subsample_length if train else None,
        max_action_dim=max_action_dim,
        max_proprio_dim=max_proprio_dim,
        head_to_dataset=head_to_dataset,
    )
    samples = dataclasses.replace(samples, compat=compat)
    chosen = samples.chosen[_passing(samples, skip_unlabeled, max_action, max_proprio)]
    samples = dataclasses.replace(samples, chosen=chosen)
    if frame_filter is not None:
        samples = dataclasses.replace(samples, kept=_kept_frames(samples, frame_filter))
    made = dataset.with_samples(dataclasses.replace(samples, transforms=transforms)).with_threads(num_parallel_calls)
    for function in map(instantiated, post_chunk_transforms):
        made = made.traj_map(function)
    return made


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
    _known(strategy, task_augmentation, tuple(takes), kwargs, takes.get(strategy, set()), needed=True)
    found = dict(kwargs)
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


def _kept_frames(samples: Samples, frame_filter: Callable[[Tree], Any]) -> np.ndarray:
    kept = np.zeros(samples.episodes.frames, dtype=bool)
    plain = MapDataset.range(len(samples.chosen)).map_with_index(samples.trajectory).map(frame_filter)
    for episode, verdict in zip(samples.chosen.tolist(), results(plain, "frame filter")):
        start, length = int(samples.episodes.starts[episode]), int(samples.episodes.lengths[episode])
        verdict = np.asarray(verdict)
        if verdict.shape != (length,):
            raise ValueError(
                f"frame_filter must return one bool for each of the {length} frames of a trajectory; "
                f"it returned an array of the shape {verdict.shape}."
            )
        kept[start : start + length] = verdict.astype(bool)
    return kept
