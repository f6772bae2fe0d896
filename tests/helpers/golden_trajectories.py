"""What the original trajectory pipeline gave, and the trajectories it was given, as trees of NumPy arrays.

Images stand for themselves by the number of their frame, as bytes; the golden outputs have the numbers only.
"""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from bushel._src.trajectory.make_dataset import make_dataset_from_rlds
from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

GOLDEN = Path(__file__).parents[1] / "trajectory" / "golden"
LENGTHS = [12, 3, 40, 5, 8, 20, 27, 4]


def text(name: str) -> Any:
    """A golden JSON file."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


@functools.cache
def manifest() -> dict[str, Any]:
    """The cases by name."""
    return {case["case"]: case for case in text("MANIFEST")}


@functools.cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """A golden npz file: strings as objects, images as the numbers of their frames."""
    found = {}
    with np.load(GOLDEN / f"{name}.npz") as file:
        for key in file.files:
            leaf = file[key]
            if key.endswith("@frame_index"):
                found[key.removesuffix("@frame_index")] = images(leaf)
            else:
                found[key] = leaf.astype(object) if leaf.dtype.kind == "S" else leaf
    return found


def images(numbers: np.ndarray) -> np.ndarray:
    """Numbers of frames as strings; -1 is padding."""
    return np.array([b"" if number < 0 else b"%d" % number for number in numbers.ravel()], object).reshape(
        numbers.shape
    )


def tree(name: str, prefix: str) -> dict[str, Any]:
    """The part of a golden file under a prefix such as "ep0", as nested dicts."""
    found: dict[str, Any] = {}
    for key, leaf in arrays(name).items():
        if key.startswith(f"{prefix}/"):
            *folders, last = key.removeprefix(f"{prefix}/").split("/")
            place = found
            for folder in folders:
                place = place.setdefault(folder, {})
            place[last] = leaf
    return found


def restructured(episode: int) -> dict[str, Any]:
    """An input episode in the pipeline's form, before normalisation."""
    raw = tree("inputs/synth_rlds", f"ep{episode}")
    length = len(raw["action"])
    return {
        "observation": {
            "image_primary": images(np.arange(length)),
            "image_secondary": images(np.full(length, -1)),
            "proprio_arm": raw["observation"]["state"],
            "timestep": np.arange(length, dtype=np.int32),
        },
        "task": {"language_instruction": raw["language_instruction"]},
        "action": raw["action"],
        "dataset_name": np.full(length, b"synth_rlds", object),
    }


def statistics() -> dict[str, Any]:
    """The statistics by which the golden trajectories are normalised."""
    return text("stats/statistics_default")["statistics"]


def assert_same_tree(ours: Any, theirs: Any, path: str = "") -> None:
    """Equal keys, types, shapes and values, bit for bit."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), path
        assert set(ours) == set(theirs), f"{path}: {sorted(ours)} against {sorted(theirs)}"
        for key in theirs:
            assert_same_tree(ours[key], theirs[key], f"{path}/{key}")
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), path
        np.testing.assert_array_equal(ours, theirs, err_msg=path)


def standardize(trajectory: dict[str, Any]) -> dict[str, Any]:
    """What the golden outputs were made with."""
    trajectory["observation"]["proprio"] = trajectory["observation"]["state"]
    return trajectory


def made(cache: str, **kwargs: Any) -> tuple[TrajectoryDataset, dict[str, Any]]:
    """The golden data set through our reader, as the golden outputs were made but for `kwargs`."""
    case = manifest()["traj/default_eval"]["base_kwargs"]
    wanted = {"image_obs_keys", "proprio_obs_keys", "language_key", "name"}
    base = {name: value for name, value in case.items() if name in wanted}
    base |= {
        "data_dir": str(GOLDEN / "tfds"),
        "train": True,
        "shuffle": False,
        "standardize_fn": standardize,
        "cache_dir": cache,
    }
    return make_dataset_from_rlds(**(base | {"compat": "crossformer"} | kwargs))
