"""Images of a frame: CPU time to decode, resize and augment one, against TensorFlow where it is installed.

`python -m benchmarks.frames` prints a table in Markdown; `--save NAME` also writes results/NAME.md. Each time is the
least of several, in turns, of all threads of the process.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jpeg import Photos
from bushel._src.trajectory.augmentations import augment_image
from bushel._src.trajectory.pixels import decode_image, resize_image

SIZE = (224, 224)
ORDER = ["random_resized_crop", "random_brightness", "random_contrast", "random_saturation", "random_hue"]
ARGUMENTS = {
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.1],
    "random_contrast": [0.9, 1.1],
    "random_saturation": [0.9, 1.1],
    "random_hue": [0.05],
}

Step = Callable[[Any], Any]


def ours() -> dict[str, Step]:
    """What Bushel does with a photo, with its pixels, and with its resized pixels."""
    rng = np.random.default_rng(0)
    return {
        "decode": decode_image,
        "resize": lambda image: resize_image(image, SIZE),
        "augment": lambda image: augment_image(image, ORDER, rng=rng, **ARGUMENTS),
    }


def tensorflows() -> dict[str, Step]:
    """The same as the original pipeline writes it, compiled to graphs."""
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

    def decode(photo: Any) -> Any:
        return tf.io.decode_image(photo, expand_animations=False)

    def resize(image: Any) -> Any:
        found = tf.image.resize(image, SIZE, method="lanczos3", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(found), 0, 255), tf.uint8)

    def augment(image: Any) -> Any:
        found = tf.image.convert_image_dtype(image, tf.float32)
        box = [[0.02, 0.03, 0.95, 0.98]]
        found = tf.clip_by_value(tf.image.crop_and_resize(found[None], box, [0], SIZE)[0], 0, 1)
        found = tf.clip_by_value(tf.image.random_brightness(found, 0.1), 0, 1)
        found = tf.clip_by_value(tf.image.random_contrast(found, 0.9, 1.1), 0, 1)
        found = tf.clip_by_value(tf.image.random_saturation(found, 0.9, 1.1), 0, 1)
        found = tf.clip_by_value(tf.image.random_hue(found, 0.05), 0, 1)
        return tf.image.convert_image_dtype(found, tf.uint8, saturate=True)

    def finished(function: Any) -> Step:
        compiled = tf.function(function)
        return lambda element: compiled(tf.constant(element)).numpy()  # it answers before it is done

    return {"decode": finished(decode), "resize": finished(resize), "augment": finished(augment)}


def measured(steps: dict[str, Step], photos: list[bytes]) -> dict[str, float]:
    """Milliseconds of CPU per image of each step, over all photos once."""
    found, elements = {}, list(photos)
    for name, step in steps.items():
        begun = time.process_time()
        elements = [step(element) for element in elements]
        found[name] = 1000 * (time.process_time() - begun) / len(photos)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--save", metavar="NAME", help="write results/NAME.md")
    options = parser.parse_args()
    photos = Photos(64).photos
    contenders = {"Bushel": ours()}
    if find_spec("tensorflow") is not None:
        contenders["TensorFlow"] = tensorflows()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(options.repetitions):
        for name, steps in contenders.items():
            runs[name].append(measured(steps, photos))
    lines = [
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {version('numpy')}. CPU milliseconds for one "
        f"JPEG of 256 x 256 ({sum(map(len, photos)) // len(photos):,} bytes on average) to {SIZE[0]} x {SIZE[1]}; the "
        f"least of {options.repetitions} runs over {len(photos)} images.",
        "",
        "| contender | decode | resize | both | five augmentations |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, times in runs.items():
        decode, resize, augment = (min(run[step] for run in times) for step in ("decode", "resize", "augment"))
        lines.append(f"| {name} | {decode:.2f} | {resize:.2f} | {decode + resize:.2f} | {augment:.2f} |")
    print("\n".join(lines))
    if options.save:
        (Path(__file__).parent / "results" / f"{options.save}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
