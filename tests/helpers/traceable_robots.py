"""Robot data whose content says where it comes from: a state is (robot, episode, step), and a frame shows the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bushel.trajectory import convert_episodes, write_rlds

LENGTHS = (5, 3, 8)
SIZE = (24, 32)
WORDS = "put <b>ball</b> & cup away"


def frame(robot: int, episode: int, step: int, camera: int = 0) -> np.ndarray:
    """A picture that differs for each robot, episode, step and camera, in every pixel of its first channel."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    first = np.full(SIZE, 10 + 97 * camera + 41 * robot + 23 * episode + 3 * step) % 256
    return np.stack([first, (5 * y + 7 * camera) % 256, (3 * x + step) % 256], -1).astype(np.uint8)


def state(robot: int, episode: int, length: int) -> np.ndarray:
    """One row per step: robot, episode, step."""
    return np.array([[robot, episode, step] for step in range(length)], np.float32)


def actions(robot: int, episode: int, length: int, width: int = 2) -> np.ndarray:
    """One row per step. The first dimension is 100 * robot + 10 * episode + step, which is exact in float32."""
    steps = np.arange(length)
    return np.stack([100 * robot + 10 * episode + steps - 50 * d for d in range(width)], 1).astype(np.float32)


def steps(robot: int, episode: int, length: int) -> dict[str, Any]:
    """The steps of an episode, with two cameras."""
    front, wrist = (np.stack([frame(robot, episode, t, camera) for t in range(length)]) for camera in (0, 1))
    return {
        "observation": {"front": front, "wrist": wrist, "state": state(robot, episode, length)},
        "action": actions(robot, episode, length),
        "language_instruction": np.array([WORDS.encode()] * length, object),
    }


def write_robot(folder: Path, name: str, robot: int = 0, lengths: Sequence[int] = LENGTHS) -> str:
    """An RLDS data set; returns its `data_dir`."""
    episodes = [{"steps": steps(robot, episode, length)} for episode, length in enumerate(lengths)]
    write_rlds({"train": episodes}, name=name, data_dir=str(folder))
    return str(folder)


def write_all_formats(folder: Path) -> dict[str, tuple[str, str]]:
    """The same episodes in each format: kind -> (name, data_dir)."""
    import h5py

    write_robot(folder / "rlds", "arm")
    (folder / "npz" / "arm").mkdir(parents=True)
    (folder / "aloha" / "arm").mkdir(parents=True)
    (folder / "robomimic").mkdir()
    with h5py.File(folder / "robomimic" / "arm.hdf5", "w") as file:
        for episode, length in enumerate(LENGTHS):
            tree = steps(0, episode, length)
            demo = file.create_group(f"data/demo_{episode}")
            demo.attrs["num_samples"] = length
            demo.attrs["ep_meta"] = f'{{"lang": "{WORDS}"}}'
            demo["actions"] = tree["action"]
            for name, values in tree["observation"].items():
                demo[f"obs/{name}_image" if values.ndim == 4 else f"obs/{name}"] = values
    for episode, length in enumerate(LENGTHS):
        tree = steps(0, episode, length)
        observation = tree["observation"]
        np.savez(
            folder / f"npz/arm/{episode}.npz",
            **observation,
            action=tree["action"],
            language_instruction=np.array(WORDS),
        )
        with h5py.File(folder / f"aloha/arm/episode_{episode}.hdf5", "w") as file:
            file.attrs["sim"] = True
            file["action"] = tree["action"]
            file["observations/qpos"] = observation["state"]
            file["observations/images/front"], file["observations/images/wrist"] = (
                observation["front"],
                observation["wrist"],
            )
    convert_episodes(
        str(folder / "npz" / "arm"),
        str(folder / "lerobot" / "arm"),
        format="lerobot",
        source_format="npz",
        fps=10,
        codec=None,
    )
    places = {kind: ("arm", str(folder / kind)) for kind in ("rlds", "npz", "aloha", "robomimic", "lerobot")}
    return places


def keys(name: str, data_dir: str, cache: Path, **more: Any) -> dict[str, Any]:
    """The arguments of `make_dataset_from_rlds` for a robot, without normalisation."""
    return {
        "name": name,
        "data_dir": data_dir,
        "image_obs_keys": {"primary": "front", "wrist": "wrist"},
        "proprio_obs_keys": {"arm": "state"},
        "language_key": "language_instruction",
        "train_split": "train",
        "cache_dir": str(cache),
        "skip_norm": True,
        **more,
    }
