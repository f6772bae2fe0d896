"""Robot data as CrossFormer trains on it: `python -m benchmarks.robots`. Time, latency and memory, in fresh processes.

The data set is that of the published figures of the original: episodes of 75 steps with two cameras of 256 x 256, as
JPEG; frames are decoded, resized to 224 x 224, shuffled over all data and put into batches of 64. It is written to a
temporary folder first, as RLDS.

    python -m benchmarks.robots                                 # this version: speed, latency, memory
    python -m benchmarks.robots --base /path/to/old/checkout    # only CPU time per image, beside an older version's

With `--base` the versions take turns, each run in a process of its own, and their first batches are compared: values of
pixels may differ by 1 where the exact result lies within float32's error of a border.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

STEPS, BATCH = 75, 64
ORIGINAL_MS = (3.63, 3.91)
"""CPU milliseconds per image of the original, decode and resize, on two shared cores."""
TARGET_MS = 2.0
RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
CASES = {"frames": (1, False, 10), "five augmentations": (1, True, 6)}
"""What is compared with an older version: window, whether images are augmented, batches of one run."""


def episodes(count: int, pixels: int, quality: int) -> Iterator[dict[str, Any]]:
    """Episodes with pictures that are as large as photographs are, encoded."""
    import simplejpeg

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (8, pixels // 16, pixels // 16, 3), dtype=np.uint8)
    scenes = np.clip(coarse.repeat(16, 1).repeat(16, 2) + rng.normal(0, 14, (8, pixels, pixels, 3)), 0, 255)
    for number in range(count):
        pictures = []
        for step in range(2 * STEPS):
            picture = np.roll(scenes[(number + step) % 8], step, axis=1).astype(np.uint8)
            pictures.append(simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality, colorsubsampling="420"))
        yield {
            "steps": {
                "observation": {
                    "image": pictures[:STEPS],
                    "wrist_image": pictures[STEPS:],
                    "proprio": rng.random((STEPS, 14), dtype=np.float32),
                },
                "action": rng.random((STEPS, 7), dtype=np.float32),
                "language_instruction": np.full(STEPS, b"pick it up", object),
            },
            "episode_metadata": {"number": number},
        }


def pipeline(folder: str, size: int, window: int, augment: bool) -> Any:
    """The pipeline of the original, under its own names."""
    from bushel._src.trajectory.trajectory_loader import make_interleaved_dataset

    operations = {
        "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
        "random_brightness": [0.1],
        "random_contrast": [0.9, 1.1],
        "random_saturation": [0.9, 1.1],
        "random_hue": [0.05],
    }
    return make_interleaved_dataset(
        [
            {
                "name": "robot",
                "data_dir": folder,
                "image_obs_keys": {"primary": "image", "wrist": "wrist_image"},
                "proprio_obs_keys": {"arm": "proprio"},
                "language_key": "language_instruction",
                "cache_dir": os.path.join(folder, "cache"),
            }
        ],
        train=True,
        traj_transform_kwargs={"window_size": window, "action_horizon": 4},
        frame_transform_kwargs={
            "resize_size": (size, size),
            "image_augment_kwargs": {"augment_order": list(operations), **operations} if augment else {},
        },
        batch_size=BATCH,
    )


def measured(folder: str, size: int, window: int, augment: bool, workers: int, batches: int) -> dict[str, float]:
    """Times of one run, in this process and its workers."""
    begun, cpu = time.perf_counter(), cpu_s()
    ds = pipeline(folder, size, window, augment)
    iterator = ds.iterator(workers=workers)
    built = time.perf_counter()
    first = next(iterator)
    started, waits = time.perf_counter(), []
    cpu_of_first, cpu_before = cpu_s() - cpu, cpu_s()
    for _ in range(batches):
        asked = time.perf_counter()
        batch = next(iterator)
        waits.append(time.perf_counter() - asked)
        assert batch["observation"]["image_primary"].shape == (BATCH, window, size, size, 3)
    spent = cpu_s() - cpu_before
    iterator.close()
    images = batches * BATCH * window * 2
    assert first["observation"]["image_primary"].any()
    return {
        "cpu_ms_per_image": 1e3 * spent / images,
        "frames_per_s": batches * BATCH / sum(waits),
        "build_s": built - begun,
        "first_batch_s": started - begun,
        "first_batch_cpu_s": cpu_of_first,
        "next_p50_ms": 1e3 * statistics.median(waits),
        "next_p99_ms": 1e3 * float(np.percentile(waits, 99)),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (1 << (10 if sys.platform != "darwin" else 20)),
    }


def cpu_s() -> float:
    """CPU seconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def alone(*arguments: Any) -> dict[str, float]:
    """`measured` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, arguments)


def compare(folder: str, base: Path, repetitions: int) -> list[str]:
    """A table of CPU time per image: this version, and the one in the folder `base`."""
    lines = ["| case | base | Bushel | base / Bushel | values that differ |", "| --- | --- | --- | --- | --- |"]
    versions = {"base": base, "bushel": ROOT}
    for name in CASES:
        outputs = [os.path.join(folder, f"{version}.npz") for version in versions]
        for (_, tree), output in zip(versions.items(), outputs):
            _run_version(tree, folder, name, output)
        differing = _compare_outputs(name, *outputs)
        taken: dict[str, list[float]] = {version: [] for version in versions}
        for repetition in range(repetitions):
            order = list(versions)
            for version in reversed(order) if repetition % 2 else order:
                taken[version].append(_run_version(versions[version], folder, name)["cpu_ms_per_image"])
        old, new = (statistics.median(times) for times in taken.values())
        ratios = [a / b for a, b in zip(*taken.values(), strict=True)]
        ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"
        lines.append(f"| {name} | {old:.2f} ms | {new:.2f} ms | {ratio} | {differing} |")
    return lines


def _run_version(tree: Path, folder: str, case: str, output: str = "") -> dict[str, float]:
    """`measured` in a process that imports Bushel from the folder `tree`. With `output` it saves the first batch."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "benchmarks.robots", "--one", folder, case, output]
    done = subprocess.run(command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _run_one(folder: str, case: str, output: str) -> dict[str, float]:
    window, augment, batches = CASES[case]
    if not output:
        return measured(folder, 224, window, augment, 0, batches)
    with pipeline(folder, 224, window, augment).iterator() as iterator:
        batch = next(iterator)
    np.savez(output, **{name: batch["observation"][f"image_{name}"] for name in ("primary", "wrist")})
    return {}


def _compare_outputs(case: str, *paths: str) -> str:
    """How many pixel values of two runs differ. Raises SystemExit if one differs by more than 1, or one in 1,000."""
    old, new = (np.load(path) for path in paths)
    apart = np.concatenate([np.abs(old[name].astype(int) - new[name]).ravel() for name in old.files])
    count = np.count_nonzero(apart)
    if apart.max() > 1 or count > 1e-3 * apart.size:
        raise SystemExit(f"{case}: {count} of {apart.size} values differ, by up to {apart.max()}.")
    return f"{count} of {apart.size:,}"


HEAD = """\
# Robot data as CrossFormer trains on it

{date}, `python -m benchmarks.robots --save robots`. "Next" is the time until a batch comes.

"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robots", description=__doc__)
    parser.add_argument("--base", type=Path, help="the folder of another checkout of Bushel, to compare with")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--episodes", type=int, default=40, help="as many as the published figures had")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.md")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_run_one(*options.one)))
        return
    from benchmarks.libraries import machine
    from bushel._src.trajectory.rlds.writer import write_rlds

    where, lines = machine(), []
    with tempfile.TemporaryDirectory() as folder:
        large, small, smaller = (os.path.join(folder, name) for name in ("large", "ten", "one"))
        write_rlds({"train": list(episodes(options.episodes, 256, 90))}, name="robot", data_dir=large, shards=4)
        if options.base is not None:
            lines += compare(large, options.base.resolve(), options.repetitions)
        else:
            lines += _speed(large, options.repetitions)
            write_rlds({"train": list(episodes(40, 64, 90))}, name="robot", data_dir=smaller)
            write_rlds({"train": list(episodes(400, 64, 90))}, name="robot", data_dir=small)
            lines += _memory(smaller, small)
    where["load_average_after"] = machine()["load_average"]
    text = "\n".join([", ".join(f"{name} {value}" for name, value in where.items()), "", *lines])
    print(text)
    if options.save:
        (RESULTS / f"{options.save}.md").write_text(f"{HEAD.format(date=time.strftime('%Y-%m-%d'))}{text}\n")


def _speed(folder: str, repetitions: int) -> list[str]:
    low, high = ORIGINAL_MS
    lines = [
        f"Medians of {repetitions} runs, each in a process of its own. The original: {low}-{high} CPU-ms per image "
        "without augmentations, 5.2-6.5 with five of them.",
        "",
        "| window | augmented | workers | CPU-ms per image | frames/s | first run: to the first batch | later runs | "
        "CPU s | next p50 | p99 | target |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    first = alone(folder, 224, 1, False, 0, 1)["first_batch_s"]  # makes the table and the statistics
    cases = [(1, False, 0, 20), (1, False, 2, 40), (1, True, 0, 10), (5, False, 0, 5)]
    runs: dict[Any, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(repetitions):
        for window, augment, workers, batches in cases:
            runs[window, augment, workers, batches].append(alone(folder, 224, window, augment, workers, batches))
    for (window, augment, workers, _), found in runs.items():
        middle = {name: statistics.median(run[name] for run in found) for name in found[0]}
        met = ""
        spent = "" if workers else f"{middle['cpu_ms_per_image']:.2f}"  # that of workers is not seen from here
        if (window, augment, workers) == (1, False, 0):
            met = f"{TARGET_MS} {'met' if middle['cpu_ms_per_image'] <= TARGET_MS else 'MISSED'}"
        lines.append(
            f"| {window} | {'yes' if augment else 'no'} | {workers} | {spent} | "
            f"{middle['frames_per_s']:.0f} | {first:.2f} s | {middle['first_batch_s']:.2f} s | "
            f"{middle['first_batch_cpu_s']:.2f} | {middle['next_p50_ms']:.0f} ms | "
            f"{middle['next_p99_ms']:.0f} ms | {met} |"
        )
    return lines


def _memory(one: str, ten: str) -> list[str]:
    found = {}
    for name, folder in (("3,000", one), ("30,000", ten)):
        alone(folder, 64, 2, False, 0, 1)
        found[name] = alone(folder, 64, 2, False, 0, 30)["peak_rss_mib"]
    few, many = found.values()
    rows = [f"| {frames} | {peak:.0f} MiB |" for frames, peak in found.items()]
    return [
        "",
        "Largest resident memory of a process that reads 31 shuffled batches of 64 (window 2, two cameras of 64 x 64):",
        "",
        "| frames | peak |",
        "|---|---|",
        *rows,
        "",
        f"Ten times the frames: {many - few:+.0f} MiB.",
    ]


if __name__ == "__main__":
    main()
