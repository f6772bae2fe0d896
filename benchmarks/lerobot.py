"""LeRobot windows: CPU time per camera frame beside `LeRobotDataset` with PyTorch's `DataLoader`, and beside a floor.

`PYTHONPATH=src python -m benchmarks.lerobot` prints a table in Markdown; `--save` also writes results/lerobot.md. It
needs lerobot 0.4 with torch and torchcodec, and the extras `parquet,video,robots`, in one virtual environment; without
lerobot it measures Bushel and the floor. The data set is written by Bushel: episodes of 120 frames, 2 cameras of
320 x 240 at 30 fps, a key frame every second frame. A window has 8 frames of both cameras, of state and action; batches
of 16 windows in a random order over all rows. Each time is the median of several repetitions, in turns, of all
processes: user and system time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import bushel
from bushel._src.base.late_imports import import_package
from bushel._src.trajectory.episode_conversion import convert_episodes
from bushel._src.trajectory.lerobot.reader import LeRobotSource
from bushel._src.trajectory.video_packets import PacketTable

EPISODES, LENGTH, FPS, SIZE = 6, 120, 30, (240, 320)
WINDOW, BATCH, BATCHES, WARM = 8, 16, 8, 2
CAMERAS = ("observation.images.front", "observation.images.wrist")
KEYS = (*CAMERAS, "observation.state", "action")
DELTAS = {key: [step / FPS for step in range(1 - WINDOW, 1)] for key in KEYS}
TARGETS = {"h264": (4.5, 4.0), "av1": (2.2, 2.0)}
"""How many times less CPU time than lerobot: in the process, and with 2 workers."""
FLOOR = 1.3


def write_data(folder: Path, codec: Any, episodes: int = EPISODES) -> Path:
    """A LeRobot v3 data set: shapes that move over a texture, with noise."""
    rng = np.random.default_rng(0)
    texture = rng.integers(40, 200, (SIZE[0] // 8, SIZE[1] // 8, 3)).repeat(8, 0).repeat(8, 1)
    source = folder / f"source_{codec}"
    source.mkdir()
    for episode in range(episodes):
        frames = {}
        for camera in ("front", "wrist"):
            noise = rng.normal(0, 3, (LENGTH, *SIZE, 1))
            images = np.stack([np.roll(texture, 2 * step + 40 * episode, 1) for step in range(LENGTH)])
            frames[camera] = np.clip(images + noise, 0, 255).astype(np.uint8)
        state = rng.normal(size=(LENGTH, 7)).astype(np.float32)
        np.savez(source / f"{episode}.npz", **frames, state=state, action=state + 1)
    target = folder / codec
    convert_episodes(
        source, target, format="lerobot", source_format="npz", fps=FPS, codec=codec, key_frame_interval=2, task="move"
    )
    return target


# The three sides. Each yields batches without end.


def ours(folder: Path, cache: Path, workers: int, float_images: bool = False) -> Iterator[Any]:
    """Bushel's batches."""
    source = LeRobotSource(folder, delta_timestamps=DELTAS, cache_dir=cache, float_images=float_images)
    ds = bushel.MapDataset.source(source).shuffle(seed=1).repeat().batch(BATCH)
    stream = ds.to_iter_dataset(bushel.ReadOptions(0, 0))
    return iter(stream.mp_prefetch(bushel.MultiprocessingOptions(workers)) if workers else stream)


def theirs(folder: Path, workers: int) -> Iterator[Any]:
    """Batches of lerobot's data set and PyTorch's loader."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        open_lerobot(folder),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,  # a decoder that was opened before a fork reads garbage
    )
    while True:
        yield from loader


def open_lerobot(folder: Path) -> Any:
    """The data set as lerobot opens it."""
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    return module.LeRobotDataset("mine/mine", root=folder, delta_timestamps=DELTAS)


def floor(folder: Path, cache: Path) -> Iterator[Any]:
    """The least work by hand: all rows and videos in memory, sorted batches, one decoder for each camera."""
    source = LeRobotSource(folder, cache_dir=cache)
    videos: Any = source._table.columns[CAMERAS[0]].parts._videos
    av: Any = import_package("av", "video", "Video files")
    numbers = {camera: source._table.columns[camera].places[:, :2] for camera in CAMERAS}
    contents = [Path(path).read_bytes() for path in videos.paths]
    tables = [videos.tables[number] for number in range(len(videos.paths))]
    rows = {key: source._table.columns[key].values for key in KEYS[2:]}
    decoders = {}
    for camera in CAMERAS:
        stream = tables[int(numbers[camera][0, 0])].stream
        decoders[camera] = av.CodecContext.create("libdav1d" if stream.codec == "av1" else stream.codec, "r")
        decoders[camera].thread_count, decoders[camera].thread_type = 1, "NONE"
        decoders[camera].extradata = stream.extradata
    rng = np.random.default_rng(1)
    while True:
        index = rng.integers(0, EPISODES * LENGTH, BATCH)
        wanted = np.maximum(index[:, None] + np.arange(1 - WINDOW, 1), index[:, None] // LENGTH * LENGTH)
        batch = {key: values[wanted] for key, values in rows.items()}
        for camera in CAMERAS:
            batch[camera] = _decode_by_hand(decoders[camera], numbers[camera][wanted.ravel()], contents, tables, av)
        yield batch


def _decode_by_hand(
    decoder: Any, places: np.ndarray, contents: list[bytes], tables: list[PacketTable], av: Any
) -> np.ndarray:
    out = np.empty((len(places), *SIZE, 3), np.uint8)
    converter = av.video.reformatter.VideoReformatter()
    options = {"threads": 1} if "threads" in (converter.reformat.__doc__ or "") else {}
    targets: dict[tuple[int, int], list[int]] = {}
    for place, (file, frame) in enumerate(places.tolist()):
        targets.setdefault((file, frame), []).append(place)
    wanted = sorted(targets)
    low = 0
    while low < len(wanted):
        high = low
        while high + 1 < len(wanted) and wanted[high + 1][1] - wanted[high][1] <= 2:
            high += 1
        file, last = wanted[high]
        table, data = tables[file], contents[file]
        frames = []
        for number in range(int(table.starts[wanted[low][1]]), last + 1):
            begin = int(table.offsets[number])
            packet = av.Packet(data[begin : begin + int(table.sizes[number])])
            packet.pts = number
            frames += [(frame.pts, frame) for frame in decoder.decode(packet)]
        frames += [(frame.pts, frame) for frame in decoder.decode(None)]
        decoder.flush_buffers()
        for number, frame in frames:
            found = targets.get((file, number))
            if found:
                out[found] = converter.reformat(frame, format="rgb24", **options).to_ndarray()
        low = high + 1
    return out.reshape(BATCH, WINDOW, *SIZE, 3)


# Measuring.


def spent_s() -> float:
    """CPU seconds of this process and all processes that it has started, directly or not."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry)] = int(fields[1])
            times[int(entry)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # also of ended children
    own = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(times[process] for process in own) - times[os.getpid()] + time.process_time()


def settle() -> float:
    """Waits until no process works ahead any more, and returns the CPU seconds spent until then."""
    spent = spent_s()
    while True:
        time.sleep(0.5)
        before, spent = spent, spent_s()
        if spent - before < 0.02:
            return spent


def measure(batches: Iterator[Any]) -> float:
    """CPU milliseconds per camera frame. Workers have full buffers before and after, so all work counts once."""
    for _ in range(WARM):
        next(batches)
    begun = settle()
    for _ in range(BATCHES):
        next(batches)
    return (settle() - begun) * 1000 / (BATCHES * BATCH * WINDOW * len(CAMERAS))


def check_equal(folder: Path, cache: Path) -> None:
    """Raises if lerobot and Bushel do not give the same rows."""
    source, other = LeRobotSource(folder, delta_timestamps=DELTAS, cache_dir=cache), open_lerobot(folder)
    for index in (0, 5, 119, 120, 400, 719):
        mine, item = source[index], other[index]
        assert mine.keys() == item.keys(), mine.keys() ^ item.keys()
        for key, value in item.items():
            expected: Any = value if isinstance(value, str) else value.numpy()
            if key in CAMERAS:
                expected = np.rint(255 * np.moveaxis(expected, -3, -1)).astype(np.uint8)
            np.testing.assert_array_equal(mine[key], expected, err_msg=f"row {index}, {key}")


def measure_memory(folder: Path, cache: Path, episodes: int) -> float:
    """MiB that one process needs to read batches of a data set whose `meta` and rows are repeated, beyond imports."""
    many = folder.parent / f"{folder.name}_{episodes}"
    _repeat_episodes(folder, many, episodes)
    code = (
        "import sys, resource; from benchmarks.lerobot import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "source = LeRobotSource(sys.argv[1], cache_dir=sys.argv[2])\n"  # makes the table in a process of its own
    )
    read = (
        "import sys, resource; from benchmarks.lerobot import *\n"
        "next(iter(ours(Path(sys.argv[3]), Path(sys.argv[2]), 0)))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "batches = ours(Path(sys.argv[1]), Path(sys.argv[2]), 0)\n"
        "for _ in range(30): next(batches)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    import subprocess

    arguments = [str(many), str(cache), str(folder)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    done = subprocess.run([sys.executable, "-c", read, *arguments], check=True, capture_output=True, text=True)
    return float(done.stdout)


def _repeat_episodes(folder: Path, target: Path, episodes: int) -> None:
    """A data set with many episodes that all show the same videos."""
    pa, pq = (import_package(name, "parquet", "Parquet files") for name in ("pyarrow", "pyarrow.parquet"))
    for name in ("data/chunk-000", "meta/episodes/chunk-000"):
        (target / name).mkdir(parents=True)
    (target / "videos").symlink_to(folder / "videos")
    for name in ("info.json", "tasks.parquet"):
        (target / "meta" / name).write_bytes((folder / "meta" / name).read_bytes())
    rows = pa.concat_tables([pq.read_table(path) for path in sorted((folder / "data").rglob("*.parquet"))])
    facts = pq.read_table(next((folder / "meta/episodes").rglob("*.parquet"))).to_pylist()
    pieces, described = [], []
    for episode in range(episodes):
        piece = rows.slice(episode % EPISODES * LENGTH, LENGTH)
        for key, values in (
            ("episode_index", np.full(LENGTH, episode)),
            ("index", episode * LENGTH + np.arange(LENGTH)),
        ):
            piece = piece.set_column(piece.column_names.index(key), key, pa.array(values))
        pieces.append(piece)
        described.append({**facts[episode % EPISODES], "episode_index": episode})
    pq.write_table(pa.concat_tables(pieces), target / "data/chunk-000/file-000.parquet")
    pq.write_table(pa.Table.from_pylist(described), target / "meta/episodes/chunk-000/file-000.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="also writes results/lerobot.md")
    parser.add_argument("--quick", action="store_true", help="one repetition, H.264 only")
    asked = parser.parse_args()
    has_lerobot = importlib.util.find_spec("lerobot") is not None
    lines = [
        "| codec | what | CPU-ms per camera frame | lerobot / this | this / floor |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        cache = root / "cache"
        for codec in ("h264",) if asked.quick else tuple(TARGETS):
            folder = write_data(root, codec)
            sides: dict[str, Callable[[], Iterator[Any]]] = {
                "Bushel, uint8, in the process": lambda folder=folder: ours(folder, cache, 0),
                "Bushel, uint8, 2 workers": lambda folder=folder: ours(folder, cache, 2),
                "Bushel, float32 as lerobot, in the process": lambda folder=folder: ours(folder, cache, 0, True),
                "floor by hand, uint8": lambda folder=folder: floor(folder, cache),
            }
            if has_lerobot:
                check_equal(folder, cache)
                sides["lerobot, 0 workers"] = lambda folder=folder: theirs(folder, 0)
                sides["lerobot, 2 workers"] = lambda folder=folder: theirs(folder, 2)
            batches = {side: make() for side, make in sides.items()}
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(1 if asked.quick else asked.repetitions):
                for side in sides:
                    times[side].append(measure(batches[side]))
            for stream in batches.values():
                getattr(stream, "close", lambda: None)()
            middle = {side: statistics.median(values) for side, values in times.items()}
            lines += _describe(codec, middle, missed)
        small, large = (measure_memory(root / "h264", cache, episodes) for episodes in (20, 2000))
        lines += [
            "",
            f"Memory of 30 batches beyond that of the smallest data set: {small:.0f} MiB with 20 episodes, "
            f"{large:.0f} MiB with 2,000.",
        ]
        if large > small + 64:
            missed.append(f"memory grows with the number of episodes: {small:.0f} to {large:.0f} MiB")
    packages = ["numpy", "av", *(["lerobot", "torch", "torchcodec"] if has_lerobot else [])]
    about = f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} CPUs, "
    about += f"Python {platform.python_version()}, "
    about += ", ".join(f"{package} {version(package)}" for package in packages)
    text = "\n".join(["# LeRobot windows", "", str(__doc__).partition("\n\n")[2].strip(), "", about, "", *lines, ""])
    print(text)
    if asked.save:
        (Path(__file__).parent / "results" / "lerobot.md").write_text(text)
    for sentence in missed:
        print(f"MISSED: {sentence}")
    sys.exit(1 if missed else 0)


def _describe(codec: str, middle: dict[str, float], missed: list[str]) -> list[str]:
    """The rows of the table for a codec. Notes targets that are missed."""
    lines = []
    least = middle["floor by hand, uint8"]
    for side, value in middle.items():
        workers = 2 if "2 workers" in side else 0
        other = middle.get(f"lerobot, {workers} workers")
        ratio = "" if other is None else f"{other / value:.2f}"
        lines.append(f"| {codec} | {side} | {value:.3f} | {ratio} | {value / least:.2f} |")
        if side.startswith("Bushel, uint8"):
            target = TARGETS[codec][1 if workers else 0]
            if other is not None and other / value < target:
                missed.append(f"{codec}, {side}: {other / value:.2f} times less than lerobot, target {target}")
            if value > FLOOR * least and not workers:
                missed.append(f"{codec}, {side}: {value / least:.2f} of the floor, target {FLOOR}")
    return lines


if __name__ == "__main__":
    main()
