"""Episodes in RLDS, HDF5 and `.npz` files: `python -m benchmarks.robot_formats`. CPU time, in one process.

Two questions. What do statistics of a million frames cost, when no image is decoded? And what does a random frame cost
beside a scan of the files in order? The data sets are written to a temporary folder first. Each measurement has a
process of its own, so that its memory is its own. With `--save` the table is written to
benchmarks/results/robot_formats.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

STEPS = 500
KINDS = ("rlds", "robomimic", "npz")
RESULTS = Path(__file__).parent / "results" / "robot_formats.md"


def episodes(frames: int, pixels: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Episodes of 500 steps with one camera. All have the same pictures: only their number matters here."""
    picture = rng.integers(0, 256, (STEPS, pixels, pixels, 3), np.uint8)
    for _ in range(frames // STEPS):
        yield {
            "image": picture,
            "state": rng.random((STEPS, 14), np.float32),
            "action": rng.random((STEPS, 7), np.float32),
        }


def write(kind: str, folder: str, frames: int, pixels: int) -> None:
    """Writes a data set of one format."""
    rng = np.random.default_rng(0)
    if kind == "rlds":
        import simplejpeg

        from bushel.trajectory import write_rlds

        first = next(episodes(STEPS, pixels, rng))["image"]
        encoded = [simplejpeg.encode_jpeg(np.ascontiguousarray(one), 90) for one in first]
        rows = [
            {"steps": {"observation": {"image": encoded, "state": one["state"]}, "action": one["action"]}}
            for one in episodes(frames, pixels, rng)
        ]
        write_rlds({"train": rows}, name="robot", data_dir=folder, shards=8)
    elif kind == "robomimic":
        import h5py

        with h5py.File(os.path.join(folder, "robot.hdf5"), "w") as file:
            for number, one in enumerate(episodes(frames, pixels, rng)):
                group = file.create_group(f"data/demo_{number}")
                group.attrs["num_samples"] = STEPS
                group.create_dataset("obs/image", data=one["image"], chunks=(1, pixels, pixels, 3))
                group["obs/state"], group["actions"] = one["state"], one["action"]
    else:
        os.makedirs(os.path.join(folder, "robot"))
        for number, one in enumerate(episodes(frames, pixels, rng)):
            np.savez(os.path.join(folder, "robot", f"{number}.npz"), **one)


class Cost(NamedTuple):
    """What a call takes: CPU seconds, and the growth of the largest memory of the process, in bytes."""

    cpu_s: float
    grown_bytes: int


def measure(function: Callable[[], Any]) -> tuple[Cost, Any]:
    """What a call takes, and what it returns. All threads of this process count."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    value = function()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Cost(time.process_time() - begun, 1024 * grown), value


def measure_statistics(kind: Any, folder: str, frames: int) -> tuple[Cost, float]:
    """What the table and the statistics cost, from files that were not read before; and CPU seconds the next time."""
    from bushel._src.trajectory import pixels, single_pass
    from bushel.trajectory import make_dataset_from_rlds

    def refuse(*_: Any) -> Any:
        raise AssertionError("an image was decoded")

    pixels._decode = refuse
    single_pass._INLINE_S = float("inf")  # no worker processes: their CPU time would not be seen
    arguments = {
        "image_obs_keys": {"primary": "image"},
        "proprio_obs_keys": {"arm": "state"},
        "train_split": "all",
        "cache_dir": os.path.join(folder, "cache"),
    }
    first, (_, found) = measure(lambda: make_dataset_from_rlds("robot", folder, train=True, format=kind, **arguments))
    again, _ = measure(lambda: make_dataset_from_rlds("robot", folder, train=True, format=kind, **arguments))
    assert int(found["num_transitions"]) == frames
    return first, again.cpu_s


def measure_floor(kind: Any, folder: str, frames: int) -> Cost:
    """The least work, by hand: the numbers of each episode from its file, then NumPy's statistics of all of them.

    For RLDS it is what parses the records: there is no other library without TensorFlow. For HDF5 it is h5py, for
    `.npz` files NumPy.
    """

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if kind == "rlds":
            from bushel._src.sources.protocol_buffers import locate_example
            from bushel.sources import TFRecordDataSource

            for record in TFRecordDataSource(sorted(map(str, Path(folder).glob("robot/*/*.tfrecord*")))):
                features = locate_example(record)
                state, action = (features[f"steps/{name}"].numbers for name in ("observation/state", "action"))
                assert state is not None and action is not None
                yield state.reshape(STEPS, -1), action.reshape(STEPS, -1)
        elif kind == "robomimic":
            import h5py

            with h5py.File(os.path.join(folder, "robot.hdf5")) as file:
                for number in range(frames // STEPS):
                    group: Any = file[f"data/demo_{number}"]
                    yield group["obs/state"][:], group["actions"][:]
        else:
            for path in Path(folder).glob("robot/*.npz"):
                with np.load(path) as arrays:
                    yield arrays["state"], arrays["action"]

    def compute() -> None:
        for rows in map(np.concatenate, zip(*read())):
            for summarize in (np.mean, np.std, np.min, np.max):
                summarize(rows, axis=0)
            np.quantile(rows, [0.01, 0.99], axis=0)

    return measure(compute)[0]


def measure_frames(kind: Any, folder: str, count: int) -> tuple[float, float]:
    """CPU seconds for a frame of whole episodes in order, and for a frame at random, read and decoded."""
    from bushel._src.trajectory.encoded_images import read_all
    from bushel._src.trajectory.episode_builder import open_episodes
    from bushel.trajectory import decode_image

    source: Any = open_episodes("robot", folder, format=kind).episodes()
    if kind == "rlds":
        source = source.index(progress=False)

    def scan() -> int:
        done = 0
        while done < count:
            images = source[done // STEPS]["observation"]["image"]
            for low in range(0, len(images), 64):
                done += len([decode_image(image) for image in read_all(images[low : low + 64].tolist())])
        return done

    handles = [source[number]["observation"]["image"] for number in range(len(source))]
    order = np.random.default_rng(1).permutation(len(source) * STEPS)[:count]

    def pick() -> int:
        for low in range(0, count, 64):
            some = [handles[place // STEPS][place % STEPS] for place in order[low : low + 64].tolist()]
            for image in read_all(some):
                decode_image(image)
        return count

    costs: dict[Callable[[], int], list[float]] = {scan: [], pick: []}
    for _ in range(6):  # in turns; the first of each warms up, and other programs can only add to the CPU time
        for function, found in costs.items():
            cost, done = measure(function)
            found.append(cost.cpu_s / done)
    return min(costs[scan][1:]), min(costs[pick][1:])


def run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new process, which reads files that are in the cache of the system, but nothing else."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
        return process.submit(function, *arguments).result()


def main() -> None:
    """Writes the data sets and measures them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames for statistics")
    parser.add_argument("--pick", type=int, default=4096, help="frames that are read")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--save", action="store_true", help=f"writes {RESULTS.name}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    known, read = [], []
    for kind in options.only:
        with tempfile.TemporaryDirectory() as folder:
            run_apart(write, kind, folder, options.frames, 8)
            floor = run_apart(measure_floor, kind, folder, options.frames)
            first, again_s = run_apart(measure_statistics, kind, folder, options.frames)
        known.append(
            f"| {kind} | {first.cpu_s:.1f} s | {1e6 * first.cpu_s / options.frames:.1f} us | {floor.cpu_s:.1f} s | "
            f"{first.grown_bytes / 1e6:.0f} MB | {floor.grown_bytes / 1e6:.0f} MB | {again_s:.2f} s |"
        )
        print(known[-1], flush=True)
        with tempfile.TemporaryDirectory() as folder:
            run_apart(write, kind, folder, 20 * STEPS, 128)
            in_order_s, at_random_s = run_apart(measure_frames, kind, folder, options.pick)
        ratio = at_random_s / in_order_s
        read.append(f"| {kind} | {1e3 * in_order_s:.3f} ms | {1e3 * at_random_s:.3f} ms | {ratio:.2f} |")
        print(read[-1], flush=True)
    new_line = "\n"
    table = f"""\
# Episodes in RLDS, HDF5 and .npz files

{time.strftime("%Y-%m-%d")}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()},
NumPy {np.__version__}. The load of the machine was {load:.1f} before the run.
`python -m benchmarks.robot_formats --save` writes this file.

Statistics of {options.frames:,} frames in episodes of {STEPS} steps (14 numbers of state, 7 of action, one camera),
from files that were not read before. The table of episodes is built and kept; no image is decoded. CPU time is that of
one process, with its imports and the check of all files. "By hand" reads only the numbers, and calls NumPy. Memory is
the growth of the process.

| format | CPU time | a frame | by hand | memory | by hand | the next time |
| --- | --- | --- | --- | --- | --- | --- |
{new_line.join(known)}

Frames of 128 x 128 pixels, read and decoded, in batches of 64: whole episodes in order, and frames at random over all
episodes. RLDS has JPEG images, the others have pixels. CPU time of a frame, the least of five runs in turns:

| format | in order | at random | ratio |
| --- | --- | --- | --- |
{new_line.join(read)}
"""
    print(table)
    if options.save:
        RESULTS.write_text(table)


if __name__ == "__main__":
    main()
