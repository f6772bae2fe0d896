"""Small functions for trajectories: arrays of NumPy and JAX with one code, trees, padding, names, gripper actions.

Also: random draws from a NumPy generator or a `jax.random` key, and whether the original's faults are wanted.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from bushel._src.base import checks
from bushel._src.base.errors import BushelError
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states

__all__ = [
    "allocate_threads",
    "binarize_gripper_actions",
    "combine_dataset_statistics",
    "filter_eval_datasets",
    "filter_success_droid",
    "invert_gripper_actions",
    "moving",
    "not_empty",
    "pprint_data_mixture",
    "rel2abs_gripper_actions",
    "rel_open_or_closed",
    "relabel_actions",
    "sample_match_keys_uniform",
    "to_padding",
    "tree_map",
    "tree_merge",
]

Compat = Literal["crossformer"]


def reproduces_faults(compat: Compat | None) -> bool:
    """True for "crossformer", which reproduces the original's faults, and False for None.

    >>> reproduces_faults(None), reproduces_faults("crossformer")
    (False, True)
    """
    if compat is None:
        return False
    if compat == "crossformer":
        return True
    raise ValueError(
        "compat must be None (correct values) or 'crossformer' (the original's values and faults), "
        f"got {compat!r}.{checks.suggest(compat, get_args(Compat))}"
    )


_HOST = (np.ndarray, np.generic, int, float, bytes, str, list, tuple, dict, type(None), np.random.Generator)

Rng = Any
"""What random functions take: a generator, a seed, a `jax.random` key, or None for draws that cannot be repeated."""


def is_jax(value: Any) -> bool:
    """Return whether a value is an array or a key of JAX, also inside `jit` and `vmap`.

    >>> is_jax(np.zeros(2)), is_jax([1, 2])
    (False, False)
    """
    if isinstance(value, _HOST):  # a shortcut: isinstance with jax.Array takes ten times as long
        return False
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_traced(value: Any) -> bool:
    """Return whether a value is an array of JAX whose numbers are not known yet, inside `jit` or `vmap`.

    >>> is_traced(np.zeros(2))
    False
    """
    return is_jax(value) and isinstance(value, sys.modules["jax"].core.Tracer)


def get_namespace(*values: Any) -> Any:
    """Return the module for these values: `jax.numpy` if one of them is an array of JAX, else `numpy`.

    >>> get_namespace(np.zeros(2), None).__name__
    'numpy'
    """
    return sys.modules["jax.numpy"] if any(map(is_jax, values)) else np


def is_text(leaf: Any) -> bool:
    """Return whether an array holds strings, in any of NumPy's dtypes. Encoded images are strings too.

    >>> is_text(np.array([b"", b"a"], object)), is_text(np.array(["a"])), is_text(np.zeros(2))
    (True, True, False)
    """
    return leaf.dtype.kind in "OSUT"


def to_numpy(leaf: Any) -> Any:
    """Return a NumPy array in place of an array of another library, such as TensorFlow.

    An array of another library has a method `numpy()` or `__array__`. A scalar text stays a `str` or `bytes`. All other
    values, arrays of JAX too, are returned as they are.

    >>> to_numpy(b"lift"), to_numpy(np.zeros(2)).shape
    (b'lift', (2,))
    """
    if isinstance(leaf, np.ndarray | np.generic | bytes | str) or is_jax(leaf):
        return leaf
    if callable(getattr(leaf, "numpy", None)):
        leaf = leaf.numpy()
        return leaf if isinstance(leaf, bytes | str) else np.asarray(leaf)
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def take_rows(leaf: Any, times: Any) -> Any:
    """Return the rows of an array at `times`, integers of any shape.

    >>> take_rows(np.array([5, 6]), np.array([[1, 0]])).tolist()
    [[6, 5]]
    """
    if is_jax(times) and isinstance(leaf, np.ndarray):
        if is_text(leaf):  # JAX has no texts, so the index moves to the host
            times = np.asarray(times)
        else:
            leaf = get_namespace(times).asarray(leaf)
    return leaf[times]


def to_objects(values: Sequence[Any]) -> np.ndarray:
    """Return a one-dimensional array whose elements are these objects, also where the objects are arrays or lists.

    >>> to_objects([b"a", b""])
    array([b'a', b''], dtype=object)
    """
    return np.fromiter(values, object, len(values))


def running_max(values: Any) -> Any:
    """For each element the maximum of all elements up to it.

    >>> running_max(np.array([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    return sys.modules["jax"].lax.cummax(values) if is_jax(values) else np.maximum.accumulate(values)


def draw_uniform(rng: Rng, count: int, dtype: Any = None) -> Any:
    """Return `count` draws from [0, 1). With a `jax.random` key they are an array of JAX, also inside `jit` and `vmap`.

    >>> draw_uniform(0, 2).shape
    (2,)
    """
    if is_jax(rng):
        return sys.modules["jax"].random.uniform(rng, (count,), dtype or float)
    return np.random.default_rng(rng).random(count, dtype or np.float64)


def make_key(seed: Any) -> Any:
    """Return a `jax.random` key from a key of either kind, a seed, a sequence of seeds, or a NumPy generator.

    >>> import jax
    >>> bool(make_key([3, 4]) == jax.random.fold_in(jax.random.key(3), 4))
    True
    """
    jax = sys.modules["jax"]
    if is_jax(seed) and jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if np.ndim(seed) == 1 and getattr(seed, "dtype", None) == np.uint32:  # a raw key, as jax.random.PRNGKey makes it
        return jax.numpy.asarray(seed)
    if isinstance(seed, np.random.Generator):
        seed = seed.integers(1 << 32, size=2).tolist()
    first, *others = seed if np.ndim(seed) else [seed]
    if isinstance(first, int) and first >> 32:  # JAX keeps only the lower 32 bits of an int
        first, others = first & 0xFFFFFFFF, [first >> 32, *others]
    return fold_in(jax.random.key(first), *others)


def fold_in(key: Any, *numbers: Any) -> Any:
    """Return a key derived from another key and `numbers`.

    >>> import jax
    >>> bool(fold_in(jax.random.key(3)) == jax.random.key(3))
    True
    """
    for number in numbers:
        key = sys.modules["jax"].random.fold_in(key, number)
    return key


def make_generator(rng: Rng) -> np.random.Generator:
    """Return a NumPy generator, for functions that run on the host only. A `jax.random` key is used as its seed."""
    return np.random.default_rng(np.asarray(sys.modules["jax"].random.key_data(rng)) if is_jax(rng) else rng)


Tree = dict[str, Any]


@public("bushel.trajectory")
class BadTrajectory(BushelError, ValueError):
    """A trajectory that cannot be used, found by code that does not know its file. The caller adds the file.

    Attributes:
      number: the number of the trajectory among those that the code was given.
    """

    def __init__(self, message: str, number: int):
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        return self.args[0]


@public("bushel.trajectory.data_utils")
def tree_map(fn: Callable[[Any], Any], tree: Mapping[str, Any]) -> Tree:
    """Return a nested dict with `fn` applied to each value that is not a dict.

    >>> tree_map(abs, {"a": -1, "b": {"c": -2}})
    {'a': 1, 'b': {'c': 2}}
    """
    return {key: tree_map(fn, value) if isinstance(value, dict) else fn(value) for key, value in tree.items()}


@public("bushel.trajectory.data_utils")
def tree_merge(*trees: Mapping[str, Any]) -> Tree:
    """Return nested dicts merged into one. If two have a value for the same path, the later one is used.

    >>> tree_merge({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}})
    {'a': 1, 'b': {'c': 3, 'd': 4}}
    """
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            if isinstance(value, dict):
                before = merged.get(key)
                merged[key] = tree_merge(before if isinstance(before, dict) else {}, value)
            else:
                merged[key] = value
    return merged


def flatten_tree(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the leaves of a nested dict by their paths.

    >>> flatten_tree({"a": 1, "b": {"c": 2}})
    {('a',): 1, ('b', 'c'): 2}
    """
    leaves: dict[tuple[str, ...], Any] = {}
    for name, value in tree.items():
        leaves |= flatten_tree(value, (*above, name)) if isinstance(value, Mapping) else {(*above, name): value}
    return leaves


def nest_leaves(leaves: Mapping[tuple[str, ...], Any]) -> Tree:
    """Return the nested dict with these leaves: the inverse of `flatten_tree`.

    >>> nest_leaves({("a",): 1, ("b", "c"): 2})
    {'a': 1, 'b': {'c': 2}}
    """
    tree: Tree = {}
    for (*above, name), value in leaves.items():
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = value
    return tree


def take(tree: Mapping[str, Any], times: Any) -> Tree:
    """Return a tree of arrays with the rows at `times`, an integer array of any shape.

    >>> take({"a": np.arange(3) * 10}, np.array([[2, 0]]))["a"].tolist()
    [[20, 0]]
    """
    return tree_map(lambda leaf: take_rows(leaf, times), tree)


def get_entry(tree: Mapping[str, Any], name: str, *, of: str = "A trajectory", hint: str = "") -> Any:
    """Return `tree[name]`, or an error that lists the entries of the tree.

    >>> get_entry({"action": 1}, "action")
    1
    """
    if name not in tree:
        raise ValueError(f"{of} has no {name!r}, only {sorted(tree)}. {hint}".rstrip())
    return tree[name]


@public("bushel.trajectory.data_utils")
def not_empty(leaf: np.ndarray) -> np.ndarray:
    """Return which strings of an array are not empty. Encoded images in files are not read.

    >>> not_empty(np.array([b"", b"a"], object)).tolist()
    [False, True]
    """
    return np.fromiter(map(len, leaf.ravel().tolist()), np.int64, leaf.size).reshape(leaf.shape) != 0


@public("bushel.trajectory.data_utils")
def to_padding(leaf: Any) -> Any:
    """Return padding of the shape of an array: zeros, or empty strings.

    >>> to_padding(np.array([b"jpeg"], object)), to_padding(np.ones(2, np.float32))
    (array([b''], dtype=object), array([0., 0.], dtype=float32))
    """
    if leaf.dtype.kind == "O":
        return np.full(leaf.shape, b"", object)
    if is_text(leaf) or leaf.dtype.kind in "iufc":
        return get_namespace(leaf).zeros_like(leaf)
    raise ValueError(f"There is no padding for an array of {leaf.dtype}. Use numbers or strings.")


def fnmatch_filter(template: str, xs: Iterable[str]) -> list[str]:
    """Return the names that match a pattern such as `"image_*"`, in the given order.

    >>> fnmatch_filter("image_*", ["image_left", "proprio"])
    ['image_left']
    """
    return [x for x in xs if fnmatch.fnmatch(x, template)]


def matching_key(names: Iterable[str], key_template: str, draw: float, *, compat: Compat | None = None) -> str:
    """Return one of the names that match a pattern, by a draw from [0, 1). All of them are equally likely.

    With `compat="crossformer"` the last of several is never chosen.

    >>> matching_key(["a_1", "a_2", "b"], "a_*", 0.7)
    'a_2'
    """
    choices = _list_matches(names, key_template, compat)
    return choices[int(draw * len(choices))]


def _list_matches(names: Iterable[str], key_template: str, compat: Compat | None) -> list[str]:
    names = list(names)
    matches = fnmatch_filter(key_template, names)
    if not matches:
        raise ValueError(f"No key matches {key_template!r}. There are: {names}.")
    return matches[:-1] if reproduces_faults(compat) and len(matches) > 1 else matches


@public("bushel.trajectory.data_utils")
def sample_match_keys_uniform(
    d: Mapping[str, Any], key_template: str, *, rng: Rng = None, compat: Compat | None = None
) -> Any:
    """Return the value of a key that is drawn from the keys that match a pattern.

    With `compat="crossformer"` the last of several is never drawn. With a `jax.random` key as `rng` it runs inside
    `jit` and `vmap`, where the values must be numbers of one shape.

    >>> sample_match_keys_uniform({"text": 1, "state": 2}, "te*")
    1
    """
    choices = _list_matches(d, key_template, compat)
    (drawn,) = (draw_uniform(rng, 1) * len(choices)).astype(int)
    if not is_traced(drawn):
        return d[choices[int(drawn)]]
    return get_namespace(drawn).stack([d[key] for key in choices])[drawn]


@public("bushel.trajectory.data_utils")
def pprint_data_mixture(dataset_kwargs_list: Sequence[Mapping[str, Any]], dataset_weights: Sequence[float]) -> None:
    """Print the data sets of a mixture with their weights.

    >>> pprint_data_mixture([{"name": "bridge"}, {"name": "kuka"}], [0.75, 0.25])
    2 datasets, with their weights:
      bridge  0.75
      kuka    0.25
    """
    names = [str(kwargs["name"]) for kwargs in dataset_kwargs_list]
    width = max(map(len, names), default=0)
    print(f"{len(names)} datasets, with their weights:")
    for name, weight in zip(names, dataset_weights, strict=True):
        print(f"  {name:<{width}}  {weight:g}")


@public("bushel.trajectory.data_utils")
def filter_eval_datasets(
    dataset_kwargs_list: Sequence[Mapping[str, Any]],
    sample_weights: Sequence[float] | None,
    eval_datasets: Sequence[str] | None = None,
) -> tuple[list[Mapping[str, Any]], list[float]]:
    """Return the data sets of a mixture that are named for evaluation, with their weights. None names all, () none.

    A name that the mixture does not have raises ValueError. (The original leaves it out.)

    >>> filter_eval_datasets([{"name": "bridge"}, {"name": "kuka"}], [0.75, 0.25], ["kuka"])
    ([{'name': 'kuka'}], [0.25])
    """
    weights = [1.0] * len(dataset_kwargs_list) if sample_weights is None else list(sample_weights)
    names = [str(kwargs["name"]) for kwargs in dataset_kwargs_list]
    unknown = sorted(set(eval_datasets or ()) - set(names))
    if unknown:
        raise ValueError(f"eval_datasets has {', '.join(unknown)}, but the mixture has only {', '.join(names)}.")
    chosen = [number for number, name in enumerate(names) if eval_datasets is None or name in eval_datasets]
    return [dataset_kwargs_list[number] for number in chosen], [weights[number] for number in chosen]


@public("bushel.trajectory.data_utils")
def binarize_gripper_actions(actions: Any) -> Any:
    """Return gripper positions as open (1, above 0.95) or closed (0, below 0.05).

    Others get the next state that is reached.

    If no state is reached before the end of the trajectory, the last position is used as it is.

    >>> binarize_gripper_actions([1, 0.5, 0, 0.5]).tolist()
    [1.0, 0.0, 0.0, 0.5]
    """
    xp, positions = _check_steps(actions)
    is_open = positions > 0.95
    to_end = xp.where(is_open | (positions < 0.05), np.arange(len(positions), 0, -1), 0)
    reached = len(positions) - running_max(to_end[::-1])[::-1]
    return xp.concatenate([is_open.astype(np.float32), positions[-1:]])[reached]


@public("bushel.trajectory.data_utils")
def rel2abs_gripper_actions(actions: Any) -> Any:
    """Return relative gripper actions (above 0.1 closes, below -0.1 opens) as states: 1 for open, 0 for closed.

    The first motion is assumed to change the state. Without any motion the gripper is open.

    >>> rel2abs_gripper_actions([0, 1, 0, -1]).tolist()
    [1.0, 0.0, 0.0, 1.0]
    """
    xp, moves = _check_steps(actions, keep_floats=True)
    if not len(moves):
        return moves.astype(np.float32)
    opens, moved = moves < -0.1, abs(moves) > 0.1
    last = running_max(xp.where(moved, np.arange(len(moves)), -1))
    first = ~opens[moved.argmax()]  # the state before the first motion; open if there is no motion
    return xp.where(last < 0, first, opens[last]).astype(np.float32)


@public("bushel.trajectory.data_utils")
def rel_open_or_closed(actions: Any, *, compat: Compat | None = None) -> Any:
    """Return the gripper's first state, from relative actions (below -0.001 closes, above 0.001 opens):

    1 open, 0 closed.

    A gripper that never moves was open. With `compat="crossformer"` it is always 0.

    >>> float(rel_open_or_closed([0, -1, 1]))
    1.0
    """
    xp, moves = _check_steps(actions)
    if not len(moves):
        moves = np.zeros(1, np.float32)
    moved = abs(moves) > 1e-3
    was_open = ~moved.any() | (moves[moved.argmax()] < 0)
    return xp.asarray(was_open & (not reproduces_faults(compat)), np.float32)


def _check_steps(actions: Any, keep_floats: bool = False) -> tuple[Any, Any]:
    """Return the namespace and the array of gripper actions: float32, or with `keep_floats` any float."""
    xp = get_namespace(actions)
    values = xp.asarray(actions)
    if not keep_floats or values.dtype.kind != "f":
        values = values.astype(np.float32)
    if values.ndim != 1:
        raise ValueError(f"Gripper actions must be one number per step, got an array of shape {values.shape}.")
    return xp, values


@public("bushel.trajectory.data_utils")
def invert_gripper_actions(actions: Any) -> Any:
    """Open and closed exchanged: 1 - actions.

    >>> invert_gripper_actions(np.array([0.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return 1 - actions


@public("bushel.trajectory.data_utils")
def relabel_actions(traj: Mapping[str, Any]) -> Tree:
    """Replace actions by the motion that was reached: differences of the first six numbers of `observation/state`.

    The last number of an action, the gripper, stays. The last step has no successor and is dropped.

    >>> traj = {"observation": {"state": np.arange(14.0).reshape(2, 7)}, "action": np.ones((2, 7))}
    >>> relabel_actions(traj)["action"].tolist()
    [[7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 1.0]]
    """
    state = get_entry(get_entry(traj, "observation"), "state", of="The observation")[:, :6]
    shorter = tree_map(lambda leaf: leaf[:-1], traj)
    moved, gripper = state[1:] - state[:-1], get_entry(traj, "action")[:-1, -1:]
    return shorter | {"action": get_namespace(moved, gripper).concatenate([moved, gripper], axis=1)}


@public("bushel.trajectory.data_utils")
def moving(actions: Any, *, at_rest: ArrayLike = 0.0, dims: int = 6, tolerance: float = 1e-5) -> Any:
    """Return which frames move: one of the first `dims` numbers of the action differs from `at_rest`.

    For a `frame_filter`.

    For normalised actions `at_rest` must be the normalised zero of each dimension.

    >>> moving([[0, 0, 1], [0, 0.5, 1]], dims=2).tolist()
    [False, True]
    """
    values = get_namespace(actions).asarray(actions)
    if values.ndim < 2:
        raise ValueError(f"Actions must have the shape [T, A], got {list(values.shape)}.")
    moved = abs(values - np.asarray(at_rest))[..., :dims] > tolerance
    return moved.any(axis=tuple(range(1, moved.ndim)))


@public("bushel.trajectory.data_utils")
def combine_dataset_statistics(
    all_dataset_statistics: Sequence[Mapping[str, Any]], *, compat: Compat | None = None
) -> Tree:
    """Return the statistics of several data sets together: mean, std, min and max of actions and proprioception.

    An entry that only some data sets have is combined over those. Percentiles are left out, since they cannot be
    computed from those of the parts; `get_dataset_statistics` of all trajectories computes them. With
    `compat="crossformer"` the numbers of trajectories and transitions are lists, one number for each data set.

    >>> one = {"action": {"mean": [0.0], "std": [0.0], "min": [0.0], "max": [0.0]}, "num_transitions": 1}
    >>> two = {"action": {"mean": [3.0], "std": [0.0], "min": [3.0], "max": [3.0]}, "num_transitions": 2}
    >>> combine_dataset_statistics([one | {"num_trajectories": 1}, two | {"num_trajectories": 1}])["action"]["mean"]
    [2.0]
    """
    if isinstance(all_dataset_statistics, Mapping):
        raise TypeError(
            "combine_dataset_statistics takes a list of statistics. For a mixture pass "
            "list(loader.dataset_statistics.values())."
        )
    if not all_dataset_statistics:
        raise ValueError("combine_dataset_statistics needs the statistics of at least one data set.")
    combined: Tree = {}
    names = {name: None for stats in all_dataset_statistics for name, value in stats.items() if _has_moments(value)}
    for name in names:
        having = [stats for stats in all_dataset_statistics if name in stats]
        counts = np.array(
            [float(get_entry(stats, "num_transitions", of="The dict of statistics of a data set")) for stats in having]
        )
        parts = {}
        for key in ("mean", "std", "min", "max"):
            owner = f"The dict of statistics of {name}"
            values = [np.asarray(get_entry(stats[name], key, of=owner), np.float64) for stats in having]
            if len(widths := {value.shape for value in values}) > 1:
                raise ValueError(
                    f"{name} has the shapes {sorted(widths)} in these data sets, which cannot be combined."
                )
            parts[key] = np.stack(values)
        shares = (counts / counts.sum()).reshape(-1, *[1] * (parts["mean"].ndim - 1))
        mean = (parts["mean"] * shares).sum(axis=0)
        variance = ((parts["std"] ** 2 + (parts["mean"] - mean) ** 2) * shares).sum(axis=0)
        extremes = {"min": parts["min"].min(axis=0), "max": parts["max"].max(axis=0)}
        whole = {**extremes, "mean": mean, "std": np.sqrt(variance)}
        combined[name] = {key: value.tolist() for key, value in whole.items()}
    for count in ("num_trajectories", "num_transitions"):
        numbers = [
            int(get_entry(stats, count, of="The dict of statistics of a data set")) for stats in all_dataset_statistics
        ]
        combined[count] = numbers if reproduces_faults(compat) else sum(numbers)
    return combined


def _has_moments(value: Any) -> bool:
    return isinstance(value, Mapping) and {"mean", "std"} <= set(value)


@public("bushel.trajectory.data_utils")
def allocate_threads(n: int | None, weights: ArrayLike, *, compat: Compat | None = None) -> np.ndarray:
    """Return `n` threads divided by weight, at least one for each weight above zero. If `n` is None: None for each.

    With `compat="crossformer"` and no `n` the result is -1 for each, which means "choose" in TensorFlow.

    >>> allocate_threads(8, [0.9, 0.05, 0.05]).tolist()
    [6, 1, 1]
    """
    shares, faithful = np.array(weights, float), reproduces_faults(compat)
    if n is None:
        return np.full(len(shares), -1) if faithful else np.full(len(shares), None, object)
    left = checks.integer(n, "The number of threads")
    if not np.all(np.isfinite(shares) & (shares >= 0)) or not shares.any():
        raise ValueError(f"Weights must not be negative and not all be zero, got {shares.tolist()}.")
    if len(shares) > left:
        raise ValueError(f"{len(shares)} data sets need at least {len(shares)} threads, got {left}.")
    shares /= shares.sum()
    given = np.zeros(len(shares), int)
    while (small := (shares * left < 1) & (shares > 0)).any():
        left -= int(small.sum())
        given += small
        shares[small] = 0
        if not shares.any():  # because of rounding all shares were just below one thread
            return given
        shares /= shares.sum()
    fractions, whole = np.modf(shares * left)
    given += whole.astype(int)
    given[np.argsort(fractions, kind="stable")[::-1][: left - int(whole.sum())]] += 1
    return given


@public("bushel.trajectory.data_utils")
@in_states("filter_success_droid")
def filter_success_droid(trajectory: Mapping[str, Any]) -> bool:
    """Return whether the file of a DROID trajectory is in a folder `success`.

    >>> filter_success_droid({"traj_metadata": {"episode_metadata": {"file_path": [b"/r2d2/success/x.h5"]}}})
    True
    """
    metadata = get_entry(
        get_entry(trajectory, "traj_metadata"), "episode_metadata", of="The traj_metadata of a trajectory"
    )
    path = get_entry(metadata, "file_path", of="The metadata of a DROID trajectory")[0]
    return re.fullmatch(rb".*/success/.*", path.encode() if isinstance(path, str) else bytes(path)) is not None
