"""W5: windows of robot trajectories. A history of two frames, a chunk of 50 actions, three data sets by weight."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import Contender, OutputsDiffer, Row, Settings, compare, require_same_elements

WINDOW, HORIZON, BATCH = 2, 50, 64
WEIGHTS = (0.5, 0.3, 0.2)
EPISODES = (30, 40, 50)


class Robot:
    """A data set of episodes, and its samples one by one: what a user of Grain writes."""

    def __init__(self, seed: int, episodes: int):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(50, 150, episodes)
        frames = int(self.lengths.sum())
        self.images = rng.integers(0, 256, (frames, 64, 64, 3), dtype=np.uint8)
        self.states = rng.random((frames, 8), dtype=np.float32)
        self.states[:, 0], self.states[:, 1] = seed, np.arange(frames)  # which frame of which robot
        self.actions = rng.random((frames, 7), dtype=np.float32)
        self._ends = np.cumsum(self.lengths)
        self._slots, self._ahead = np.arange(1 - WINDOW, 1), np.arange(HORIZON)
        self._true = np.ones(WINDOW, dtype=bool)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        episode = int(np.searchsorted(self._ends, index, side="right"))
        length = int(self.lengths[episode])
        start = int(self._ends[episode]) - length
        history = index - start + self._slots
        seen = np.maximum(history, 0)
        acted = np.minimum(seen[:, None] + self._ahead, length - 1)
        late = history[:, None] + self._ahead >= length
        real = (history >= 0)[:, None] & ~late
        return {
            "observation": {
                "image_primary": self.images[start + seen],
                "proprio": self.states[start + seen],
                "timestep": seen.astype(np.int32),
                "pad_mask_dict": {name: self._true for name in ("image_primary", "proprio", "timestep")},
                "timestep_pad_mask": history >= 0,
                "task_completed": late,
            },
            "action": self.actions[start + acted],
            "action_pad_mask": np.broadcast_to(real[..., None], (WINDOW, HORIZON, 7)),
            "action_head_masks": {"action": np.True_},
        }


class PlainRobot(Robot):
    """The same windows without CrossFormer's masks: images, states, actions, and which of them are real."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        episode = int(np.searchsorted(self._ends, index, side="right"))
        end = int(self._ends[episode])
        first = index - (index > end - int(self.lengths[episode]))  # one frame of history, or the frame itself
        chunk = min(HORIZON, end - index)
        acted = self.actions[index : index + chunk]
        if chunk < HORIZON:
            acted = np.concatenate([acted, np.repeat(acted[-1:], HORIZON - chunk, axis=0)])
        seen = [first, index]
        return {"action": acted, "image": self.images[seen], "real": chunk, "state": self.states[seen]}


def make_robots() -> list[Robot]:
    """The three data sets."""
    return [Robot(seed, episodes) for seed, episodes in enumerate(EPISODES)]


def opaque_stream(library: ModuleType, robots: Sequence[Robot]) -> Any:
    """Batches of the samples that the user's own class returns one by one."""
    parts = [library.MapDataset.source(robot).shuffle(seed=number).repeat() for number, robot in enumerate(robots)]
    return library.MapDataset.mix(parts, WEIGHTS).batch(BATCH).to_iter_dataset(read_inline(library))


def table_stream(robots: Sequence[Robot]) -> Any:
    """The same batches from tables of episodes, which the library knows."""
    from bushel._src.trajectory.dataset_transforms import apply_trajectory_transforms
    from bushel._src.trajectory.episodes import Episodes
    from bushel._src.trajectory.trajectory_dataset import TrajectoryDataset

    def known(robot: Robot) -> TrajectoryDataset:
        """The library knows episodes: a table."""
        arrays = {
            "observation": {"image_primary": robot.images, "proprio": robot.states},
            "action": robot.actions,
        }
        trajectories = TrajectoryDataset.from_episodes(Episodes.of_arrays(arrays, robot.lengths))
        windows: dict[str, Any] = {"window_size": WINDOW, "action_horizon": HORIZON}
        return apply_trajectory_transforms(trajectories, train=True, **windows).flatten().repeat()

    tables = TrajectoryDataset.sample_from_datasets([known(robot) for robot in robots], WEIGHTS).shuffle(seed=0)
    return tables.batch(BATCH).dataset.to_iter_dataset(read_inline(BUSHEL))


def w5(settings: Settings) -> list[Row]:
    """Samples of a mixture of three robots, shuffled, in batches of 64; per sample."""
    robots = make_robots()
    streams = {
        "grain": opaque_stream(GRAIN, robots),
        "bushel": table_stream(robots),
        "bushel, Grain's source": opaque_stream(BUSHEL, robots),
    }
    count = settings.count(sum(map(len, robots)) // BATCH, 20)  # an epoch
    for stream in streams.values():
        _require_right_samples(itertools.islice(stream, 50), robots)

    def batches(stream: Any) -> Contender:
        def run() -> int:
            forget_epoch_tables()
            exhaust(itertools.islice(stream, count))
            return count * BATCH

        return run

    contenders = {name: batches(stream) for name, stream in streams.items()}
    contenders["floor: the user's class alone"] = call_class(robots[0], count)
    contenders["floor: gather of images"] = gather_images(robots[0], count)
    targets = {"bushel": 20.0, "bushel, Grain's source": 3.0}
    notes = {"bushel": "a table of episodes", "bushel, Grain's source": "opaque: the user's own class"}
    found = compare("W5 windows", contenders, settings, targets=targets, notes=notes)
    plain = [PlainRobot(seed, episodes) for seed, episodes in enumerate(EPISODES)]
    streams = {"grain": opaque_stream(GRAIN, plain), "bushel, Grain's source": opaque_stream(BUSHEL, plain)}
    ours, theirs = (itertools.islice(opaque_stream(library, plain), 20) for library in (BUSHEL, GRAIN))
    require_same_elements("W5 without masks", ours, theirs)
    contenders = {name: batches(stream) for name, stream in streams.items()}
    contenders["floor: the user's class alone"] = call_class(plain[0], count)
    return found + compare("W5 windows without masks", contenders, settings, targets={"bushel, Grain's source": 3.0})


def _require_right_samples(batches: Iterable[Any], robots: list[Robot]) -> None:
    """Every sample is the one that the user's class gives for its frame; shares are as asked for; none comes twice."""
    counts, met = np.zeros(len(robots)), set()
    for batch in batches:
        for row in range(BATCH):
            sample = _sorted(_row(batch, row))
            robot, frame = sample["observation"]["proprio"][-1, :2].astype(int).tolist()
            require_same_elements("W5", [sample], [_sorted(robots[robot][frame])])
            counts[robot] += 1
            met.add((robot, frame))
    if len(met) != counts.sum() or np.abs(counts / counts.sum() - WEIGHTS).max() > 0.002:
        raise OutputsDiffer(f"W5: {len(met)} different frames of {counts.sum()}; shares {counts / counts.sum()}.")


def _row(tree: Any, row: int) -> Any:
    return {name: _row(entry, row) for name, entry in tree.items()} if isinstance(tree, dict) else tree[row]


def _sorted(tree: Any) -> Any:
    """A tree of dicts with its keys in order, and no empty ones."""
    if not isinstance(tree, dict):
        return tree
    found = {key: _sorted(tree[key]) for key in sorted(tree)}
    return {key: value for key, value in found.items() if not isinstance(value, dict) or value}


def gather_images(robot: Robot, batches: int) -> Contender:
    """The images of batches alone, gathered from the array."""
    frames = np.random.default_rng(9).integers(0, len(robot), (batches, BATCH, WINDOW))

    def run() -> int:
        for chosen in frames:
            np.take(robot.images, chosen, axis=0)
        return batches * BATCH

    return run


def call_class(robot: Robot, batches: int) -> Contender:
    """The user's class alone."""
    frames = np.random.default_rng(9).integers(0, len(robot), batches * BATCH).tolist()

    def run() -> int:
        for frame in frames:
            robot[frame]
        return len(frames)

    return run
