"""Data sets that everyone uses, from the files that everyone has."""

from bushel.jit.datasets import time_utils
from bushel.jit.datasets.celeba import CelebADataset
from bushel.jit.datasets.images import (
    CIFAR10Dataset,
    CIFAR100Dataset,
    EMNISTDataset,
    Example,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
)
from bushel.jit.datasets.series import DailyMinTemperaturesDataset, SunspotsDataset

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
