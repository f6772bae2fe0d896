"""W3: JPEG decoding with a random crop and flip, batches of 64, two workers or threads: the decoder is the limit."""

from __future__ import annotations

import itertools
import os
from types import ModuleType
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.libraries import BUSHEL, GRAIN, read_inline
from benchmarks.measure import Contender, Row, Settings, require_same_elements
from benchmarks.workers import Running, measured, with_workers
from bushel.experimental import multithread_prefetch

BATCH = 64
SIZE, CROP = 256, 224


class Photos:
    """Records of JPEG bytes, as they would come from a file; a few different ones, many times over."""

    def __init__(self, length: int):
        self.length = length
        self.photos = [simplejpeg.encode_jpeg(_picture(seed), quality=90) for seed in range(64)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> bytes:
        return self.photos[index % len(self.photos)]


def _picture(seed: int) -> np.ndarray:
    """Smooth shapes and a little noise: compresses as photographs do."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 6, (3, 3))]
    noise = rng.normal(0, 12, (SIZE, SIZE, 3))
    return np.clip(127 + 90 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def decode(photo: bytes, rng: np.random.Generator) -> np.ndarray:
    """What users write: decode, crop somewhere, flip perhaps."""
    image = simplejpeg.decode_jpeg(photo)
    top, left = rng.integers(0, SIZE - CROP, 2)
    image = image[top : top + CROP, left : left + CROP]
    return image[:, ::-1] if rng.random() < 0.5 else image


def _stream(library: ModuleType, source: Photos, workers: int) -> Any:
    dataset = library.MapDataset.source(source).seed(0).shuffle().random_map(decode).batch(BATCH).repeat()
    return with_workers(library, dataset.to_iter_dataset(read_inline(library)), workers)


def _torch(source: Photos) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    class Decoded(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(np.ascontiguousarray(decode(source[index], np.random.default_rng(index))))

    return torch.utils.data.DataLoader(
        Decoded(), batch_size=BATCH, shuffle=True, num_workers=2, multiprocessing_context="fork"
    )


def w3(settings: Settings) -> list[Row]:
    """Both libraries with two workers; Bushel with two threads; torch's DataLoader with two workers."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    source = Photos(20_000)
    require_same_elements(
        "W3", itertools.islice(_stream(BUSHEL, source, 2), 3), itertools.islice(_stream(GRAIN, source, 0), 3)
    )
    some = settings.count(40, 2)
    threads = multithread_prefetch(_stream(BUSHEL, source, 0), num_threads=2, buffer_size=2)
    contenders: dict[str, Contender] = {
        "grain": Running(_stream(GRAIN, source, 2), some, BATCH),
        "bushel": Running(_stream(BUSHEL, source, 2), some, BATCH),
        "bushel, threads": Running(threads, some, BATCH),
        "torch DataLoader": Running(_torch(source), some, BATCH),
    }
    notes = {"torch DataLoader": "another order and other crops"}
    return measured("W3, workers 2", contenders, settings, {"bushel": 1.15, "bushel, threads": 1.15}, notes)
