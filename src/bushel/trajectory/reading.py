"""Data sets of trajectories out of TFDS/RLDS folders.

A data set is read once into a table of episodes (numbers, texts, and the places of images), kept in a cache folder.
From then on splits, filters, transforms and mixtures are index arithmetic on that table.
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

from bushel.base import checks, redact
from bushel.base.options import MultiprocessingOptions
from bushel.dataset import MapDataset
from bushel.sources import stores
from bushel.sources.tfrecord import cache_folder
from bushel.state.digest import whole_digest
from bushel.trajectory import episodes as tables
from bushel.trajectory.arrays import to_numpy
from bushel.trajectory.collecting import portable
from bushel.trajectory.columns import flat, nested
from bushel.trajectory.compat import faithful
from bushel.trajectory.dataset import TrajectoryDataset, length_of
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.functions import Function, instantiated, listed, named
from bushel.trajectory.normalization import NormalizationType
from bushel.trajectory.passes import results
from bushel.trajectory.plain import as_mapping, refuse_unknown, takes_configs
from bushel.trajectory.restructure import Keys, Restructure, Tree, entry_name
from bushel.trajectory.rlds import RLDSBuilder, RLDSEpisodes
from bushel.trajectory.samples import Normalize, Samples
from bushel.trajectory.statistics import get_dataset_statistics, load_statistics

_log = logging.getLogger("bushel")


class _Tolerant:
    """Episodes as a source in which one that is damaged is its error, and the others are there.

    A store that fails raises: it would leave out what is well, for good, since the table is kept.
    """

    def __init__(self, episodes: RLDSEpisodes):
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


@dataclasses.dataclass(frozen=True)
class _Prepare:
    """What is done to each raw trajectory, once: filters, then the layout. None for one that is not wanted."""

    restructure: Restructure
    filters: tuple[Callable[[Tree], Any], ...]
    ignore_errors: bool

    def __call__(self, number: int, trajectory: Tree | Exception) -> dict[str, Any]:
        try:
            if isinstance(trajectory, Exception):
                raise trajectory
            if not all(self._keeps(function, trajectory) for function in self.filters):
                return {"number": number, "trajectory": None}
            metadata = {path: np.asarray(leaf)[:1] for path, leaf in flat(trajectory.get("traj_metadata", {})).items()}
            made = portable(self.restructure(trajectory))
            return {"number": number, "trajectory": made, "metadata": nested(metadata)}
        except Exception as error:
            if not self.ignore_errors:
                raise
            return {"number": number, "trajectory": None, "error": f"{type(error).__name__}: {error}"}

    def _keeps(self, function: Callable[[Tree], Any], trajectory: Tree) -> bool:
        verdict = function(trajectory)
        if verdict is None:
            raise ValueError(f"{function!r} of filter_functions returned None; did you forget a return?")
        return bool(np.all(to_numpy(verdict)))


def _table(
    builder: RLDSBuilder,
    restructure: Restructure,
    filters: Sequence[Function],
    ignore_errors: bool,
    cache: str,
    options: MultiprocessingOptions | None,
    anew: bool,
) -> Episodes:
    """The episodes of all splits that pass the filters, as a table: from the cache, unless it is to be made anew."""
    raw = builder.episodes("all")
    codes = [named(function) for function in filters]
    fingerprint = [raw.fingerprint(), whole_digest(restructure), *codes, ignore_errors]
    folder = os.path.join(cache, "episodes", whole_digest([tables.FORMAT, *fingerprint]))
    if not anew and os.path.exists(folder):
        try:
            return tables.load(folder, raw.parts)
        except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
            told = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"The table in {folder} is damaged, so {restructure.name} is read again ({told}).", stacklevel=4
            )
            anew = True
    prepare = _Prepare(restructure, tuple(map(instantiated, filters)), ignore_errors)
    source = MapDataset.source(_Tolerant(raw) if ignore_errors else raw)
    made = results(source.map_with_index(prepare), f"episodes of {restructure.name}", options)
    numbers: list[int] = []
    metadata: list[Tree] = []
    errors: list[str] = []
    wanted = _wanted(made, numbers, metadata, errors, restructure.name)
    table = Episodes.of(wanted, fingerprint=fingerprint, parts=raw.parts)
    if not numbers:
        raise ValueError(
            f"None of the {len(raw)} trajectories of {restructure.name} is left: all are empty, or filter_functions "
            f"({', '.join(codes) or 'none'}) refuse them."
            + (f" {len(errors)} could not be read, the first because of {errors[0]}" if errors else "")
        )
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(raw)} trajectories of {restructure.name} could not be read and are left out. "
            f"The first: {errors[0]}",
            stacklevel=4,
        )
    told = Episodes.of(metadata).columns if metadata[0] else {}
    table = dataclasses.replace(table, numbers=np.array(numbers), metadata=told)
    table = table.with_columns(restructure.constants(table.frames))
    try:
        return tables.save(table, folder, replace=anew)
    except OSError as error:
        warnings.warn(
            f"The table of {restructure.name} cannot be kept in {folder} ({error}): it stays in memory, and the next "
            "run reads the data set again. Name a folder that can be written by cache_dir, or by $BUSHEL_CACHE_DIR.",
            stacklevel=4,
        )
        return table


def _wanted(
    made: Iterator[dict[str, Any]], numbers: list[int], metadata: list[Tree], errors: list[str], name: str
) -> Iterator[Tree]:
    """The trajectories that are not empty; their numbers and metadata are put down, and why others failed."""
    for entry in made:
        if entry["trajectory"] is not None and length_of(entry["trajectory"]):
            numbers.append(entry["number"])
            metadata.append(entry["metadata"])
            yield entry["trajectory"]
        elif "error" in entry:
            errors.append(entry["error"])
            _log.warning("bushel: trajectory %d of %s is left out: %s", entry["number"], name, entry["error"])


def _cache(cache_dir: str | os.PathLike[str] | None) -> str:
    if cache_dir is not None and stores.is_url(cache_dir):
        raise ValueError(
            f"cache_dir is a local folder, since tables are mapped from it; got {redact.show(cache_dir)!r}. Leave it "
            "out, or name a folder of each machine: a table is made anew where there is none. Statistics can lie in a "
            "store: pass dataset_statistics the address of a file that save_statistics has written."
        )
    return stores.local(cache_dir) if cache_dir else cache_folder()


def _positions(builder: RLDSBuilder, split: str, name: str) -> np.ndarray:
    try:
        return builder.positions(split)
    except ValueError as error:
        raise ValueError(f"Data set {name!r}: {error} Its splits are chosen by train_split and val_split.") from None


@takes_configs
def make_dataset_from_rlds(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    train: bool,
    standardize_fn: Function | None = None,
    shuffle: bool = True,
    image_obs_keys: Keys | None = None,
    depth_obs_keys: Keys | None = None,
    proprio_obs_keys: Keys | None = None,
    proprio_obs_dims: Mapping[str, int] | None = None,
    proprio_obs_key: str | None = None,
    language_key: str | None = None,
    action_proprio_normalization_type: NormalizationType | str = NormalizationType.NORMAL,
    dataset_statistics: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    force_recompute_dataset_statistics: bool = False,
    action_normalization_mask: Sequence[bool] | None = None,
    filter_functions: Sequence[Function] | Function | None = (),
    skip_norm: bool = False,
    skip_norm_keys: Sequence[str] = (),
    ignore_errors: bool = False,
    num_parallel_reads: int | None = None,
    num_parallel_calls: int | None = None,
    seed: int = 0,
    compat: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    train_split: str | None = None,
    val_split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> tuple[TrajectoryDataset, dict[str, Any]]:
    """The trajectories of a TFDS/RLDS folder in the layout that all transforms know, normalised; and their statistics.

    The statistics are a tree of arrays, as in the original.

    Args:
      name, data_dir: the data set lies in `data_dir/name`; `data_dir` may be a URL.
      train: the split "train", else "val"; where there is no "val", the first 95 % of "train" or the rest.
      standardize_fn: makes a raw trajectory one with an "observation" and an "action"; a callable or a ModuleSpec.
      shuffle: gives trajectories in a random order, another one in every epoch.
      image_obs_keys, depth_obs_keys, proprio_obs_keys: new name -> name in the observation, or None for padding.
      proprio_obs_dims: how wide the padding of proprioception is.
      proprio_obs_key: Octo's way: the one entry of the observation that becomes `proprio`.
      language_key: where the instruction is; of several that match a pattern, one is drawn for each trajectory.
      action_proprio_normalization_type: "normal" or "bounds".
      dataset_statistics: a dict or a JSON file, in place of those computed over the training data.
      force_recompute_dataset_statistics: computes them though they are in the cache, and reads the data set anew.
      action_normalization_mask: false for dimensions of the action that stay as they are.
      filter_functions: of a raw trajectory; those are kept for which all say yes.
      skip_norm, skip_norm_keys: normalise nothing, or not these entries.
      ignore_errors: leaves out trajectories that are damaged, or for which a function fails, with a warning that counts
        them when the table is made. Images are decoded later: see `TrajectoryDataset.ignore_errors`.
      num_parallel_reads, num_parallel_calls: hints for how many threads work, and the latter for how many processes
        read the data set the first time; at most one per core, and -1 leaves it to the library.
      seed: of all draws that transforms make.
      compat: "crossformer" for the original's output with all its faults.
      cache_dir: the local folder where the table of episodes is kept; by default the cache folder of Bushel
        ($BUSHEL_CACHE_DIR, or bushel in $XDG_CACHE_HOME or ~/.cache). Where it cannot be written the table stays in
        memory, with a warning.
      train_split, val_split: in place of the splits that `train` stands for, as in "train[:80%]". Statistics are over
        the training data in either case.
      storage_options: of the store, where `data_dir` is a URL.

    >>> import tempfile
    >>> from bushel.trajectory import write_rlds
    >>> steps = {"observation": {"state": np.ones((5, 3), np.float32)}, "action": np.zeros((5, 2), np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_rlds(folder, "mine", {"train": [{"steps": steps}] * 4})
    ...     keys = {"proprio_obs_keys": {"arm": "state"}, "train_split": "train"}
    ...     ds, statistics = make_dataset_from_rlds("mine", folder, train=True, cache_dir=folder, **keys)
    ...     next(ds.iterator())["observation"]["proprio_arm"].shape, statistics["num_transitions"]
    ((5, 3), array(20))
    """
    others.pop("override_traj_transform_kwargs", None)
    if others and faithful(compat):  # the original swallows them
        warnings.warn(f"make_dataset_from_rlds does not know and ignores {sorted(others)}.", stacklevel=3)
    elif others:
        known = [argument for argument in inspect.signature(make_dataset_from_rlds).parameters if argument != "others"]
        refuse_unknown(others, known, f"make_dataset_from_rlds of {name}", "argument")
    cache, seed = _cache(cache_dir), checks.seed(seed)
    builder = RLDSBuilder(name, data_dir, storage_options)
    proprio_keys = dict(as_mapping(proprio_obs_keys or {}, f"proprio_obs_keys of {name}"))
    if proprio_obs_key is not None:
        if not isinstance(proprio_obs_key, str):
            raise TypeError(
                f"proprio_obs_key of {name} is the name of one entry of the observation, got {proprio_obs_key!r}. "
                "Several go into proprio_obs_keys."
            )
        proprio_keys[""] = proprio_obs_key
    restructure = Restructure(
        name,
        None if standardize_fn is None else instantiated(standardize_fn),
        dict(as_mapping(image_obs_keys or {}, f"image_obs_keys of {name}")),
        dict(as_mapping(depth_obs_keys or {}, f"depth_obs_keys of {name}")),
        proprio_keys,
        dict(as_mapping(proprio_obs_dims or {}, f"proprio_obs_dims of {name}")),
        language_key,
    )
    anew = force_recompute_dataset_statistics
    filters = listed(filter_functions)
    table = _table(builder, restructure, filters, ignore_errors, cache, _workers(num_parallel_calls), anew)
    numbers = np.arange(len(table)) if table.numbers is None else table.numbers
    training, held_out = ("train", "val") if "val" in builder.splits else ("train[:95%]", "train[95%:]")
    training, held_out = train_split or training, val_split or held_out
    chosen = np.flatnonzero(np.isin(numbers, _positions(builder, training if train else held_out, name)))
    proprio = [entry_name("proprio", new) for new, old in restructure.proprio_obs_keys.items() if old is not None]
    if dataset_statistics is None:
        counted = np.arange(len(table))
        if not faithful(compat):
            counted = np.flatnonzero(np.isin(numbers, _positions(builder, training, name)))
        statistics = get_dataset_statistics(
            _Trajectories(table, counted, proprio),
            proprio,
            (str(table.fingerprint), training, "".join(proprio)),
            save_dir=os.path.join(cache, "statistics"),
            force_recompute=force_recompute_dataset_statistics,
            compat=compat,
        )
    elif isinstance(dataset_statistics, Mapping):
        statistics = dict(dataset_statistics)
    else:
        statistics = load_statistics(dataset_statistics)
    statistics = _arrays(statistics)
    kind, scaled = NormalizationType(action_proprio_normalization_type), {"action", *proprio} - set(skip_norm_keys)
    needed = (set() if skip_norm else scaled) | ({"action"} if action_normalization_mask is not None else set())
    for entry in sorted(needed - set(statistics)):
        raise ValueError(
            f"The dataset_statistics of {name} have no {entry!r}, by which it is normalised; they have "
            f"{sorted(statistics)}. Name it in skip_norm_keys, or leave dataset_statistics away to compute them."
        )
    if action_normalization_mask is not None:
        statistics = _masked(statistics, action_normalization_mask)
    normalize = None if skip_norm else Normalize(statistics, kind, frozenset(scaled))
    samples = Samples(table, chosen, normalize=normalize, seed=seed, compat=compat)
    made = TrajectoryDataset.from_samples(samples, statistics).with_threads(num_parallel_reads)
    made = made.with_threads(num_parallel_calls)
    return (made.shuffle(seed=seed) if shuffle else made), statistics


def _workers(asked: int | None) -> MultiprocessingOptions | None:
    """The worker processes that a hint stands for; None leaves them to the library, as TensorFlow's -1 does."""
    return None if asked is None or asked <= 0 else MultiprocessingOptions(min(asked, os.cpu_count() or 1))


def _arrays(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics with an array at each leaf, counts too: models of this family call `tolist()` on all of them."""
    return {
        name: _arrays(value) if isinstance(value, Mapping) else np.array(value) for name, value in statistics.items()
    }


def _masked(statistics: Mapping[str, Any], mask: Sequence[bool]) -> dict[str, Any]:
    width = np.shape(statistics["action"]["mean"])[-1]
    if len(mask) != width:
        raise ValueError(
            f"Length of skip_normalization_mask ({len(mask)}) does not match action dimension ({width}). "
            "action_normalization_mask needs one bool for each dimension."
        )
    return {**statistics, "action": {**statistics["action"], "mask": np.array(mask, dtype=bool)}}


class _Trajectories:
    """What statistics are made of: actions and proprioception of some episodes of a table."""

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
