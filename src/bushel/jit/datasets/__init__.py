"""Well-known data sets, read from their published files: MNIST and its family, CIFAR, CelebA, two time series."""

from bushel.jit.datasets import time_utils
from bushel.jit.datasets.celeba import CelebADataset
from bushel.jit.datasets.image_datasets import (
    CIFAR10Dataset,
    CIFAR100Dataset,
    EMNISTDataset,
    Example,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
)
from bushel.jit.datasets.time_series import DailyMinTemperaturesDataset, SunspotsDataset

__all__ = [
    "CIFAR10Dataset",
    "CIFAR100Dataset",
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
