"""From the raw trajectories of a data set to the layout that all transforms expect."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bushel._src.base.state_names import in_states
from bushel._src.trajectory.data_utils import Tree, is_text, to_numpy, tree_map
from bushel._src.trajectory.episodes import LANGUAGES, Columns, Constant
from bushel._src.trajectory.standardization_steps import StatementError

Keys = Mapping[str, str | None]


def name_entry(kind: str, new: str) -> str:
    """Return the name of an entry of the observation.

    >>> name_entry("image", "primary"), name_entry("proprio", "")
    ('image_primary', 'proprio')
    """
    return f"{kind}_{new}" if new else kind


@in_states("Restructure")
@dataclasses.dataclass(frozen=True)
class Restructure:
    """Maps the entries of a raw trajectory to names that are the same for all data sets.

    `image_{new}`, `depth_{new}` and `proprio_{new}` come from the observation's entry `old`. With an empty `new` the
    name is `proprio`, as in Octo. If `old` is None, the data set does not have the entry, and the new entry is padding:
    empty strings or zeros. `task/language_instruction` comes from the key that `language_key` names. If several keys
    match it, each trajectory draws one of them. `state_obs_keys` are OpenVLA's: their entries are joined to `proprio`,
    and None is a column of zeros.
    """

    name: str
    standardize_fn: Callable[[Tree], Tree] | None = None
    image_obs_keys: Keys = dataclasses.field(default_factory=dict)
    depth_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    language_key: str | None = None
    state_obs_keys: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        for new, old in self.proprio_obs_keys.items():
            if old is None and new not in self.proprio_obs_dims:
                raise ValueError(
                    f"{self.name} has no {name_entry('proprio', new)} (its key is None), so proprio_obs_dims must say "
                    f"how wide the padding is: proprio_obs_dims={{{new!r}: 7}}, for example."
                )

    def __call__(self, trajectory: Tree) -> Tree:
        """Return the trajectory with the new names, without entries that are padding: `make_constants` adds those."""
        if self.standardize_fn is not None:
            trajectory = self._standardize(trajectory, self.standardize_fn)
            if not isinstance(trajectory, Mapping):
                raise ValueError(
                    f"standardize_fn of {self.name} must return the trajectory, a dict; it returned {trajectory!r}."
                )
            trajectory = tree_map(to_numpy, trajectory)  # the user's function may return tensors of TensorFlow
        missing = sorted({"observation", "action"} - set(trajectory))
        if missing:
            raise ValueError(
                f"Trajectories of {self.name} have no {' and no '.join(missing)}; they have {sorted(trajectory)}. "
                "A standardize_fn can put them there."
            )
        observation = trajectory["observation"]
        renamed: Tree = {}
        for kind, keys in self._list_kinds():
            renamed |= {
                name_entry(kind, new): self._find_entry(observation, old, kind, new)
                for new, old in keys.items()
                if old is not None
            }
        if self.state_obs_keys:
            renamed["proprio"] = self._join_states(observation, len(trajectory["action"]))
        task = self._find_instructions(trajectory)
        if isinstance(trajectory["action"], Mapping):
            raise ValueError(
                f"The action of {self.name} is a dict with {sorted(trajectory['action'])}: make it one array [T, A] in "
                "standardize_fn, by np.concatenate for example."
            )
        action = np.asarray(trajectory["action"], dtype=np.float32)
        self._check_rows({**renamed, **task.get(LANGUAGES, task)}, action)
        return {"observation": renamed, **({"task": task} if task else {}), "action": action}

    def _check_rows(self, entries: Mapping[str, Any], action: np.ndarray) -> None:
        if action.ndim < 2:
            raise ValueError(f"Actions of {self.name} must have the shape [T, A], these have {list(action.shape)}.")
        wrong = {entry: len(value) for entry, value in entries.items() if len(value) != len(action)}
        if wrong:
            listing = ", ".join(f"{entry} {rows}" for entry, rows in wrong.items())
            raise ValueError(
                f"The entries of a trajectory of {self.name} differ in length: action {len(action)}, {listing}."
            )

    def _standardize(self, trajectory: Tree, function: Callable[[Tree], Tree]) -> Tree:
        try:
            return function(trajectory)
        except StatementError as error:
            raise ValueError(f"Data set {self.name!r}: {error}") from error

    def _join_states(self, observation: Tree, rows: int) -> np.ndarray:
        parts = [
            np.zeros((rows, 1), np.float32) if key is None else self._find_entry(observation, key, "state", "_")
            for key in self.state_obs_keys
        ]
        shapes = [part.shape for part in parts]
        if any(len(shape) != 2 for shape in shapes):
            named = ", ".join(f"{key}: {list(shape)}" for key, shape in zip(self.state_obs_keys, shapes))
            raise ValueError(f"The state_obs_keys of {self.name} must be arrays of rows, but their shapes are {named}.")
        return np.concatenate(parts, axis=1)

    def _list_kinds(self) -> tuple[tuple[str, Keys], ...]:
        return ("image", self.image_obs_keys), ("depth", self.depth_obs_keys), ("proprio", self.proprio_obs_keys)

    def _find_entry(self, observation: Tree, old: str, kind: str, new: str) -> np.ndarray:
        argument = f"{kind}_obs_keys" if new else f"{kind}_obs_key"
        if old not in observation:
            raise ValueError(
                f"The observations of {self.name} have no {old!r}, which {argument} names; "
                f"they have {sorted(observation)}."
            )
        if isinstance(observation[old], Mapping):
            raise ValueError(
                f"{old!r}, which {argument} names, is a dict with {sorted(observation[old])} in the observations "
                f"of {self.name}: a standardize_fn can put one of its arrays into the observation itself."
            )
        values = np.asarray(observation[old])
        return values.astype(np.float32) if kind in ("proprio", "state") else values

    def _find_instructions(self, trajectory: Tree) -> Tree:
        if self.language_key is None:
            return {}
        names = fnmatch.filter(list(trajectory), self.language_key)
        if not names:
            raise ValueError(
                f"No entry of the trajectories of {self.name} matches language_key={self.language_key!r}; "
                f"they have {sorted(trajectory)}."
            )
        for name in names:
            if isinstance(trajectory[name], Mapping):
                raise ValueError(
                    f"Language key {self.language_key} names a dict in {self.name}/{name}, but it must be strings."
                )
            if not is_text(np.asarray(trajectory[name])):
                raise ValueError(
                    f"Language key {self.language_key} has dtype {np.asarray(trajectory[name]).dtype} in "
                    f"{self.name}/{name}, but it must be strings."
                )
        if len(names) == 1:
            return {"language_instruction": np.asarray(trajectory[names[0]])}
        return {LANGUAGES: {name: np.asarray(trajectory[name]) for name in names}}

    def make_constants(self, frames: int) -> Columns:
        """Return the columns with the same value in all frames: padding, and the name of the data set."""
        observation: dict[str, Any] = {}
        for kind, keys in self._list_kinds():
            for new in (new for new, old in keys.items() if old is None):
                padding = b"" if kind != "proprio" else np.zeros(self.proprio_obs_dims[new], np.float32)
                observation[name_entry(kind, new)] = Constant(padding, frames, present=False)
        return {"observation": observation, "dataset_name": Constant(self.name.encode(), frames)}
