"""From the raw trajectories of a data set to the one layout that all transforms know."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bushel.trajectory.arrays import is_text, to_numpy
from bushel.trajectory.columns import Columns, Constant
from bushel.trajectory.data_utils import tree_map
from bushel.trajectory.episodes import LANGUAGES

Tree = dict[str, Any]
Keys = Mapping[str, str | None]


def entry_name(kind: str, new: str) -> str:
    """How an entry of the observation is called.

    >>> entry_name("image", "primary"), entry_name("proprio", "")
    ('image_primary', 'proprio')
    """
    return f"{kind}_{new}" if new else kind


@dataclasses.dataclass(frozen=True)
class Restructure:
    """Maps the entries of a raw trajectory to names that are the same for all data sets.

    `image_{new}`, `depth_{new}` and `proprio_{new}` come from the observation's entry `old` (with an empty `new` the
    name is `proprio`, as in Octo). Where `old` is None the data set has none, and padding stands there: empty strings,
    zeros. `task/language_instruction` comes from the key that `language_key` names; of several that match a pattern,
    one is drawn for each trajectory.
    """

    name: str
    standardize_fn: Callable[[Tree], Tree] | None = None
    image_obs_keys: Keys = dataclasses.field(default_factory=dict)
    depth_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_keys: Keys = dataclasses.field(default_factory=dict)
    proprio_obs_dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    language_key: str | None = None

    def __post_init__(self) -> None:
        for new, old in self.proprio_obs_keys.items():
            if old is None and new not in self.proprio_obs_dims:
                raise ValueError(
                    f"{self.name} has no {entry_name('proprio', new)} (its key is None), so proprio_obs_dims must say "
                    f"how wide the padding is: proprio_obs_dims={{{new!r}: 7}}, for example."
                )

    def __call__(self, trajectory: Tree) -> Tree:
        """The trajectory with the new names; what has no old name is left to `constants`."""
        if self.standardize_fn is not None:
            trajectory = self.standardize_fn(trajectory)
            if not isinstance(trajectory, Mapping):
                raise ValueError(
                    f"standardize_fn of {self.name} must return the trajectory, a dict; it returned {trajectory!r}."
                )
            trajectory = tree_map(to_numpy, trajectory)  # it may have been written for TensorFlow
        missing = sorted({"observation", "action"} - set(trajectory))
        if missing:
            raise ValueError(
                f"Trajectories of {self.name} have no {' and no '.join(missing)}; they have {sorted(trajectory)}. "
                "A standardize_fn can put them there."
            )
        observation = trajectory["observation"]
        found: Tree = {}
        for kind, keys in self._kinds():
            found |= {
                entry_name(kind, new): self._entry(observation, old, kind, new)
                for new, old in keys.items()
                if old is not None
            }
        task = self._task(trajectory)
        if isinstance(trajectory["action"], Mapping):
            raise ValueError(
                f"The action of {self.name} is a dict with {sorted(trajectory['action'])}: make it one array [T, A] in "
                "standardize_fn, by np.concatenate for example."
            )
        action = np.asarray(trajectory["action"], dtype=np.float32)
        return {"observation": found, **({"task": task} if task else {}), "action": action}

    def _kinds(self) -> tuple[tuple[str, Keys], ...]:
        return ("image", self.image_obs_keys), ("depth", self.depth_obs_keys), ("proprio", self.proprio_obs_keys)

    def _entry(self, observation: Tree, old: str, kind: str, new: str) -> np.ndarray:
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
        return values.astype(np.float32) if kind == "proprio" else values

    def _task(self, trajectory: Tree) -> Tree:
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

    def constants(self, frames: int) -> Columns:
        """The columns that are the same for all frames."""
        observation: dict[str, Any] = {}
        for kind, keys in self._kinds():
            for new in (new for new, old in keys.items() if old is None):
                padding = b"" if kind != "proprio" else np.zeros(self.proprio_obs_dims[new], np.float32)
                observation[entry_name(kind, new)] = Constant(padding, frames, present=False)
        return {"observation": observation, "dataset_name": Constant(self.name.encode(), frames)}
