"""`make_dataset_from_rlds` and `make_dataset_from_lerobot`: the trajectories of a data set as a `TrajectoryDataset`.

The first one reads the other formats, too.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import BushelWarning
from bushel._src.base.options import MultiprocessingOptions
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.dataset import MapDataset
from bushel._src.sources.paths import expand_path, get_cache_folder, is_url
from bushel._src.state.digest import whole_digest
from bushel._src.trajectory import episodes as tables
from bushel._src.trajectory.config_values import (
    Function,
    accept_configs,
    as_mapping,
    identify_function,
    list_functions,
    load_function,
    refuse_unknown,
)
from bushel._src.trajectory.data_utils import (
    BadTrajectory,
    Compat,
    flatten_tree,
    nest_leaves,
    reproduces_faults,
    to_numpy,
)
from bushel._src.trajectory.dataset_parts import count_steps
from bushel._src.trajectory.dataset_statistics import get_dataset_statistics, load_statistics
from bushel._src.trajectory.episode_builder import EpisodeBuilder, EpisodeFormat, EpisodeSource, open_episodes
from bushel._src.trajectory.episodes import Episodes, replace_handles
from bushel._src.trajectory.lerobot.table import BadEpisodes
from bushel._src.trajectory.normalization import NormalizationType, Scaling, read_normalization_type
from bushel._src.trajectory.samples import Normalize, Samples
from bushel._src.trajectory.single_pass import iterate_once
from bushel._src.trajectory.standard_layout import Keys, Restructure, Tree, name_entry
from bushel._src.trajectory.standardization_steps import load_standardization
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

_log = logging.getLogger("bushel")


@in_states("tolerant_episodes", {"_episodes": "tolerant_episodes.episodes"})
class _Tolerant:
    """Episodes as a source that returns the exception in place of a damaged episode.

    An OSError is raised: a store that fails for a while must not remove good episodes from the table that is kept.
    """

    def __init__(self, episodes: EpisodeSource):
        self._episodes = episodes

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Tree | Exception:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tree | Exception]:
        try:
            return list(self._episodes.__getitems__(indices))
        except OSError:
            raise
        except Exception as error:
            return [error] if len(indices) == 1 else [self[index] for index in indices]

    def fingerprint(self) -> Any:
        return self._episodes.fingerprint()


@in_states("prepare_episode")
@dataclasses.dataclass(frozen=True)
class _PrepareEpisode:
    """Filters each raw trajectory and restructures it. The trajectory is None if a filter has removed it."""

    restructure: Restructure
    filters: tuple[Callable[[Tree], Any], ...]
    ignore_errors: bool
    source: EpisodeSource | None = None

    def __call__(self, number: int, trajectory: Tree | Exception) -> dict[str, Any]:
        try:
            if isinstance(trajectory, Exception):
                raise trajectory
            if not count_steps(trajectory):  # no step: there is nothing that functions could be called for
                return {"number": number, "trajectory": None}
            if not all(self._passes(function, trajectory) for function in self.filters):
                return {"number": number, "trajectory": None}
            leaves = flatten_tree(trajectory.get("traj_metadata", {}))
            metadata = nest_leaves({path: np.asarray(leaf)[:1] for path, leaf in leaves.items()})
            restructured = replace_handles(self.restructure(trajectory))
            return {"number": number, "trajectory": restructured, "metadata": metadata}
        except Exception as error:
            if not self.ignore_errors:
                raise _name_episode(error, self.source, number) from error
            return {"number": number, "trajectory": None, "error": f"{type(error).__name__}: {error}"}

    def _passes(self, function: Callable[[Tree], Any], trajectory: Tree) -> bool:
        verdict = function(trajectory)
        if verdict is None:
            raise ValueError(f"{function!r} of filter_functions returned None; did you forget a return?")
        return bool(np.all(to_numpy(verdict)))


def _name_episode(error: Exception, source: EpisodeSource | None, number: int) -> Exception:
    """Return the error with the episode and its file in front of the message, if it is a ValueError without them."""
    if source is None or type(error) not in (ValueError, BadTrajectory):
        return error
    where = source.describe(number)
    return error if where in str(error) else ValueError(f"{where}: {error}")


def _load_or_build_table(
    builder: EpisodeBuilder,
    restructure: Restructure,
    filters: Sequence[Function],
    ignore_errors: bool,
    cache: str,
    options: MultiprocessingOptions | None,
    anew: bool,
) -> Episodes:
    """Return the table of the episodes of all splits that pass the filters: from the cache folder, unless `anew`."""
    raw = builder.episodes("all")
    codes = [identify_function(function) for function in filters]
    fingerprint = [raw.fingerprint(), whole_digest(restructure), *codes, ignore_errors]
    folder = os.path.join(cache, "episodes", whole_digest([tables.FORMAT, *fingerprint]))
    if not anew and os.path.exists(folder):
        try:
            return tables.load(folder, raw.parts)
        except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
            cause = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"The table in {folder} is damaged, so {restructure.name} is read again ({cause}).",
                BushelWarning,
                stacklevel=4,
            )
            anew = True
    prepare = _PrepareEpisode(restructure, tuple(map(load_function, filters)), ignore_errors, raw)
    source = MapDataset.source(_Tolerant(raw) if ignore_errors else raw)
    entries = iterate_once(source.map_with_index(prepare), f"episodes of {restructure.name}", options)
    numbers: list[int] = []
    metadata: list[Tree] = []
    errors: list[str] = []
    wanted = _collect_wanted(entries, numbers, metadata, errors, restructure.name)
    try:
        table = Episodes.of(wanted, fingerprint=fingerprint, parts=raw.parts)
    except BadTrajectory as error:
        raise _name_episode(error, raw, numbers[-1]) from error
    if not numbers:
        raise ValueError(
            f"None of the {len(raw)} trajectories of {restructure.name} is left: all are empty, or filter_functions "
            f"({', '.join(codes) or 'none'}) remove them."
            + (f" {len(errors)} could not be read, the first because of {errors[0]}" if errors else "")
        )
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(raw)} trajectories of {restructure.name} could not be read and are left out. "
            f"The first: {errors[0]}",
            BushelWarning,
            stacklevel=4,
        )
    columns = Episodes.of(metadata).columns if metadata[0] else {}
    table = dataclasses.replace(table, numbers=np.array(numbers), metadata=columns)
    table = table.with_columns(restructure.make_constants(table.frames))
    try:
        return tables.save(table, folder, replace=anew)
    except OSError as error:
        warnings.warn(
            f"The table of {restructure.name} cannot be written to {folder} ({error}). It stays in memory, and the "
            "next run reads the data set again. Set cache_dir or $BUSHEL_CACHE_DIR to a folder that can be written.",
            BushelWarning,
            stacklevel=4,
        )
        return table


def _collect_wanted(
    entries: Iterator[dict[str, Any]], numbers: list[int], metadata: list[Tree], errors: list[str], name: str
) -> Iterator[Tree]:
    """Yield the trajectories that are not empty.

    Appends their numbers and metadata, and the errors of those that failed.
    """
    for entry in entries:
        if entry["trajectory"] is not None and count_steps(entry["trajectory"]):
            numbers.append(entry["number"])
            metadata.append(entry["metadata"])
            yield entry["trajectory"]
        elif "error" in entry:
            errors.append(entry["error"])
            _log.warning("bushel: trajectory %d of %s is left out: %s", entry["number"], name, entry["error"])


def _find_cache_folder(cache_dir: str | os.PathLike[str] | None) -> str:
    if cache_dir is not None and is_url(cache_dir):
        raise ValueError(
            f"cache_dir must be a local folder, since tables are mapped from it; got {redact.show(cache_dir)!r}. "
            "Leave it out, or name a folder of each machine: a machine without a table makes one. Statistics can be in "
            "a store: pass the address of a file that save_statistics has written as dataset_statistics."
        )
    return expand_path(cache_dir) if cache_dir else get_cache_folder()


def _find_positions(builder: EpisodeBuilder, split: str, name: str) -> np.ndarray:
    try:
        return builder.positions(split)
    except ValueError as error:
        raise ValueError(
            f"Data set {name!r}: {error} The arguments train_split and val_split choose its splits."
        ) from None


@public("bushel.trajectory")
@accept_configs
def make_dataset_from_rlds(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    train: bool,
    standardize_fn: Function | Sequence[Any] | None = None,
    shuffle: bool = True,
    image_obs_keys: Keys | None = None,
    depth_obs_keys: Keys | None = None,
    proprio_obs_keys: Keys | None = None,
    proprio_obs_dims: Mapping[str, int] | None = None,
    proprio_obs_key: str | None = None,
    state_obs_keys: Sequence[str | None] = (),
    language_key: str | None = None,
    action_proprio_normalization_type: NormalizationType | Scaling = NormalizationType.NORMAL,
    dataset_statistics: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    force_recompute_dataset_statistics: bool = False,
    action_normalization_mask: Sequence[bool] | None = None,
    absolute_action_mask: Sequence[bool] | None = None,
    filter_functions: Sequence[Function] | Function | None = (),
    skip_norm: bool = False,
    skip_norm_keys: Sequence[str] = (),
    ignore_errors: bool = False,
    num_parallel_reads: int | None = None,
    num_parallel_calls: int | None = None,
    seed: int = 0,
    compat: Compat | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    train_split: str | None = None,
    val_split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    format: EpisodeFormat = "rlds",
    format_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> tuple[TrajectoryDataset, dict[str, Any]]:
    """Return the normalised trajectories of a TFDS/RLDS folder, in the layout that transforms expect; and their
    statistics.

    The statistics are a tree of arrays, as in the original.

    Args:
      name, data_dir: the data set lies in `data_dir/name`; `data_dir` may be a URL.
      train: True for the split "train", False for "val". If there is no "val": the first 95 % of "train", or the rest.
      standardize_fn: a function that returns a raw trajectory with an "observation" and an "action": a callable, a
        ModuleSpec, or a list of statements (`docs/oxe.md`).
      shuffle: returns trajectories in a random order, another one in every epoch.
      image_obs_keys, depth_obs_keys, proprio_obs_keys: new name -> name in the observation, or None for padding.
      proprio_obs_dims: the width of the padding of proprioception, by new name.
      proprio_obs_key: Octo's argument: the entry of the observation that becomes `proprio`.
      state_obs_keys: OpenVLA's argument: entries of the observation that are joined to `proprio`. None is a column of
        zeros.
      language_key: the key of the instruction, or a pattern. If several keys match, each trajectory draws one of them.
      action_proprio_normalization_type: "normal" or "bounds".
      dataset_statistics: a dict or a JSON file, instead of statistics computed from the training data.
      force_recompute_dataset_statistics: reads the data set again and computes them, even if the cache has them.
      action_normalization_mask: one bool per dimension of the action; False for dimensions that stay as they are.
      absolute_action_mask: OpenVLA's argument, and ignored: there it determines the values of actions after the goal,
        which `action_pad_mask` masks here.
      filter_functions: functions of a raw trajectory. A trajectory is kept if all of them return true.
      skip_norm, skip_norm_keys: normalise nothing, or not these entries.
      ignore_errors: leaves out trajectories that are damaged or for which a function fails. A warning counts them when
        the table is made. Images are decoded later: see `TrajectoryDataset.ignore_errors`.
      num_parallel_reads, num_parallel_calls: hints for the number of threads. The latter is also the number of
        processes that read the data set the first time. At most one per core; -1 lets the library choose.
      seed: the seed of all draws of transforms.
      compat: "crossformer" for the original's output with all its faults.
      cache_dir: the local folder for the table of episodes; by default the cache folder of Bushel ($BUSHEL_CACHE_DIR,
        or bushel in $XDG_CACHE_HOME or ~/.cache). If it cannot be written, the table stays in memory, with a warning.
      train_split, val_split: the splits for `train=True` and `train=False`, for example "train[:80%]". Statistics are
        always those of the training split.
      storage_options: options of the store, if `data_dir` is a URL.
      format: the format of the data set, see `open_episodes`.
      format_options: options of the format, see `open_episodes`.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds({"train": [{"steps": steps}] * 4}, name="mine", data_dir=folder)
    ...     keys = {"proprio_obs_keys": {"arm": "state"}, "train_split": "train"}
    ...     ds, statistics = make_dataset_from_rlds("mine", folder, train=True, cache_dir=folder, **keys)
    ...     next(ds.iterator())["observation"]["proprio_arm"].shape, statistics["num_transitions"]
    ((5, 3), array(20))
    """
    others.pop("override_traj_transform_kwargs", None)
    if others and reproduces_faults(compat):  # the original ignores them without a warning
        warnings.warn(
            f"make_dataset_from_rlds does not know and ignores {sorted(others)}.", BushelWarning, stacklevel=3
        )
    elif others:
        known = [argument for argument in inspect.signature(make_dataset_from_rlds).parameters if argument != "others"]
        refuse_unknown(others, known, f"make_dataset_from_rlds of {name}", "argument")
    cache, seed = _find_cache_folder(cache_dir), checks.seed(seed)
    kind, faithful = read_normalization_type(action_proprio_normalization_type), reproduces_faults(compat)
    builder = open_episodes(
        name,
        data_dir,
        format=format,
        storage_options=storage_options,
        format_options=format_options,
        cache_dir=cache,
    )
    proprio_keys = dict(as_mapping(proprio_obs_keys or {}, f"proprio_obs_keys of {name}"))
    if proprio_obs_key is not None:
        if not isinstance(proprio_obs_key, str):
            raise TypeError(
                f"proprio_obs_key of {name} must be the name of one entry of the observation, got {proprio_obs_key!r}. "
                "For several entries use proprio_obs_keys."
            )
        proprio_keys[""] = proprio_obs_key
    if isinstance(state_obs_keys, str):
        raise TypeError(f"state_obs_keys of {name} must be a list of entries, got {state_obs_keys!r}.")
    if state_obs_keys and "" in proprio_keys:
        raise ValueError(f"{name} has a proprio_obs_key and state_obs_keys, but both are called proprio. Give one.")
    restructure = Restructure(
        name,
        None if standardize_fn is None else load_standardization(standardize_fn),
        dict(as_mapping(image_obs_keys or {}, f"image_obs_keys of {name}")),
        dict(as_mapping(depth_obs_keys or {}, f"depth_obs_keys of {name}")),
        proprio_keys,
        dict(as_mapping(proprio_obs_dims or {}, f"proprio_obs_dims of {name}")),
        language_key,
        tuple(state_obs_keys),
    )
    anew = force_recompute_dataset_statistics
    filters = list_functions(filter_functions)
    table = _load_or_build_table(
        builder, restructure, filters, ignore_errors, cache, _choose_workers(num_parallel_calls), anew
    )
    numbers = np.arange(len(table)) if table.numbers is None else table.numbers
    training, held_out = builder.default_splits()
    training, held_out = train_split or training, val_split or held_out
    chosen = np.flatnonzero(np.isin(numbers, _find_positions(builder, training if train else held_out, name)))
    proprio = [name_entry("proprio", new) for new, old in restructure.proprio_obs_keys.items() if old is not None]
    proprio += ["proprio"] if restructure.state_obs_keys else []
    if dataset_statistics is None:
        counted = np.arange(len(table))
        if not faithful:
            counted = np.flatnonzero(np.isin(numbers, _find_positions(builder, training, name)))
        try:
            statistics = get_dataset_statistics(
                _Trajectories(table, counted, proprio),
                proprio,
                (str(table.fingerprint), training, "".join(proprio)),
                save_dir=os.path.join(cache, "statistics"),
                force_recompute=force_recompute_dataset_statistics,
                compat=compat,
            )
        except BadTrajectory as error:
            where = builder.episodes("all").describe(int(numbers[counted[error.number]]))
            raise ValueError(f"Data set {name!r}, {where}: {error}") from error
        except ValueError as error:
            raise ValueError(f"Data set {name!r}: {error}") from error
    elif isinstance(dataset_statistics, Mapping):
        statistics = dict(dataset_statistics)
    else:
        statistics = load_statistics(dataset_statistics)
    statistics = _make_arrays(statistics)
    scaled = {"action", *proprio} - set(skip_norm_keys)
    needed = (set() if skip_norm else scaled) | ({"action"} if action_normalization_mask is not None else set())
    for entry in sorted(needed - set(statistics)):
        raise ValueError(
            f"The dataset_statistics of {name} have no {entry!r}, so it cannot be normalised; they have "
            f"{sorted(statistics)}. Add it to skip_norm_keys, or leave out dataset_statistics to compute them."
        )
    if action_normalization_mask is not None:
        statistics = _add_mask(statistics, action_normalization_mask)
    normalize = None if skip_norm else Normalize(statistics, kind, frozenset(scaled))
    samples = Samples(table, chosen, normalize=normalize, seed=seed, compat=compat)
    dataset = TrajectoryDataset._from_samples(samples, statistics)._with_threads(num_parallel_reads)
    dataset = dataset._with_threads(num_parallel_calls)
    return (dataset.shuffle(seed=seed) if shuffle else dataset), statistics


def _choose_workers(asked: int | None) -> MultiprocessingOptions | None:
    """Return the worker processes for a hint. None and -1, as in TensorFlow, let the library choose."""
    return None if asked is None or asked <= 0 else MultiprocessingOptions(min(asked, os.cpu_count() or 1))


def _make_arrays(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics with an array at each leaf, also for counts: models of this family call `tolist()` on all
    leaves.
    """
    return {
        name: _make_arrays(value) if isinstance(value, Mapping) else np.array(value)
        for name, value in statistics.items()
    }


def _add_mask(statistics: Mapping[str, Any], mask: Sequence[bool]) -> dict[str, Any]:
    width = np.shape(statistics["action"]["mean"])[-1]
    if len(mask) != width:
        raise ValueError(
            f"Length of skip_normalization_mask ({len(mask)}) does not match action dimension ({width}). "
            "action_normalization_mask needs one bool for each dimension."
        )
    return {**statistics, "action": {**statistics["action"], "mask": np.array(mask, dtype=bool)}}


@in_states(
    "prepared_trajectories",
    {
        "_chosen": "prepared_trajectories.chosen",
        "_table": "prepared_trajectories.table",
        "_proprio": "prepared_trajectories.proprio",
    },
)
class _Trajectories:
    """Actions and proprioception of some episodes of a table, for statistics."""

    def __init__(self, table: Episodes, chosen: np.ndarray, proprio: Sequence[str]):
        self._table, self._chosen, self._proprio = table, chosen, proprio

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Tree:
        episode = self._chosen[index]
        frames = self._table.starts[episode] + np.arange(int(self._table.lengths[episode]))
        columns = self._table.columns
        observation = {name: columns["observation"][name].take(frames) for name in self._proprio}
        return {"action": columns["action"].take(frames), "observation": observation}


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
    """Return the normalised trajectories of a LeRobot data set, in the layout that transforms expect; and their
    statistics.

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
