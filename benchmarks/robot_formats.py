"""Episodes in RLDS, HDF5 and `.npz` files: `python -m benchmarks.robot_formats`. CPU time, in one process.

Two questions. What do statistics of a million frames cost, when no image is decoded? And what does a random frame cost
beside a scan of the files in order? The data sets are written to a temporary folder first.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

STEPS = 500
KINDS = ("rlds", "robomimic", "npz")


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
        write_rlds(folder, "robot", {"train": rows}, shards=8)
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


def measure(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds of a call, children included, and what it returns."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, cpu = time.perf_counter(), time.process_time()
    value = function()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return time.perf_counter() - wall, time.process_time() - cpu + children, value


def measure_statistics(kind: str, folder: str, frames: int) -> None:
    """The table and the statistics of all frames, from files that nobody has read before."""
    from bushel.trajectory import make_dataset_from_rlds, pixels

    def refuse(*_: Any) -> Any:
        raise AssertionError("an image was decoded")

    decode, pixels._decode = pixels._decode, refuse
    arguments = {
        "image_obs_keys": {"primary": "image"},
        "proprio_obs_keys": {"arm": "state"},
        "train_split": "all",
        "cache_dir": os.path.join(folder, "cache"),
    }
    first, cpu, (_, found) = measure(
        lambda: make_dataset_from_rlds("robot", folder, train=True, kind=kind, **arguments)
    )
    again, _, _ = measure(lambda: make_dataset_from_rlds("robot", folder, train=True, kind=kind, **arguments))
    pixels._decode = decode
    assert int(found["num_transitions"]) == frames
    print(f"{kind:>10}  statistics of {frames:,} frames: {first:7.2f} s ({cpu:.2f} CPU-s); known before: {again:.2f} s")


def measure_frames(kind: str, folder: str, count: int) -> None:
    """Frames at random beside a scan of whole episodes in order, read and decoded."""
    from bushel.trajectory import decode_image
    from bushel.trajectory.encoded_images import read_all
    from bushel.trajectory.episode_formats import open_episodes

    source: Any = open_episodes("robot", folder, kind=kind).episodes()
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

    for warm_up in (scan, pick):
        warm_up()
    (_, in_order, done), (_, at_random, picked) = measure(scan), measure(pick)
    costs = in_order / done * 1e3, at_random / picked * 1e3
    print(
        f"{kind:>10}  CPU-ms per frame: {costs[0]:.3f} in order, {costs[1]:.3f} at random ({costs[1] / costs[0]:.2f} x)"
    )


def main() -> None:
    """Writes the data sets and measures them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames for statistics")
    parser.add_argument("--pick", type=int, default=4096, help="frames that are read")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    for kind in options.only:
        with tempfile.TemporaryDirectory() as folder:
            write(kind, folder, options.frames, 8)
            measure_statistics(kind, folder, options.frames)
        with tempfile.TemporaryDirectory() as folder:
            write(kind, folder, 20 * STEPS, 128)
            measure_frames(kind, folder, options.pick)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
