"""Well-known data sets, read from their published files: MNIST and its family, CIFAR, CelebA, two time series."""

from bushel._src.jit.datasets.celeba import CelebADataset
from bushel._src.jit.datasets.image_datasets import (
    CIFAR10Dataset,
    CIFAR100Dataset,
    EMNISTDataset,
    Example,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
)
from bushel._src.jit.datasets.time_series import DailyMinTemperaturesDataset, SunspotsDataset
from bushel.jit.datasets import time_utils

__all__ = [
    "CIFAR100Dataset",
    "CIFAR10Dataset",
    "CelebADataset",
    "DailyMinTemperaturesDataset",
    "EMNISTDataset",
    "Example",
    "FashionMNISTDataset",
    "KMNISTDataset",
    "MNISTDataset",
    "SunspotsDataset",
    "time_utils",
]
