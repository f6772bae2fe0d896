"""Augmentations on an accelerator: equal to the host's, and how long a batch takes.

`PYTHONPATH=src python benchmarks/augment_gpu.py` needs JAX and NumPy alone.
"""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np

from bushel._src.trajectory.augmentations import augment_image, augment_images, draw_parameters

ARGUMENTS = {
    "random_resized_crop": {"scale": [0.8, 1.0], "ratio": [0.9, 1.1]},
    "random_brightness": [0.1],
    "random_contrast": [0.9, 1.1],
    "random_saturation": [0.9, 1.1],
    "random_hue": [0.05],
}
ORDER = list(ARGUMENTS)
EVERY = [*ORDER, "random_flip_left_right", "random_flip_up_down", "random_rot90"]


def main() -> None:
    device = jax.devices()[0]
    print(f"jax {jax.__version__} on {device.device_kind}")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (16, 2, 224, 224, 3), dtype=np.uint8)
    for order in [[name] for name in EVERY] + [ORDER, EVERY]:
        drawn = [draw_parameters(order, rng=rng, **ARGUMENTS) for _ in images]
        host = [augment_image(image, order, parameters=own, **ARGUMENTS) for image, own in zip(images, drawn)]
        parameters = [np.stack(values) for values in zip(*drawn)]
        found = np.asarray(augment_images(images, None, order, parameters=parameters, **ARGUMENTS))
        apart = np.abs(found.astype(int) - host)
        share = np.count_nonzero(apart) / apart.size
        print(f"{'+'.join(order)}: largest difference {apart.max()}, in {share:.1e} of the values")
        assert apart.max() <= 1 and share <= 1e-3
    for samples in (64, 512):
        batch = jax.device_put(rng.integers(0, 256, (samples, 224, 224, 3), dtype=np.uint8), device)
        keys = jax.random.split(jax.random.key(0), samples)
        augment_images(batch, keys, ORDER, **ARGUMENTS).block_until_ready()
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            augment_images(batch, keys, ORDER, **ARGUMENTS).block_until_ready()
            times.append(time.perf_counter() - begun)
        middle = statistics.median(times)
        print(
            f"{samples} images of 224 x 224, five operations: {1e3 * middle:.2f} ms, {samples / middle:,.0f} images/s"
        )


if __name__ == "__main__":
    main()
