"""Data sets that everyone uses, from the files that everyone has."""

from bushel.jit.datasets.images import (
    CIFAR10Dataset,
    CIFAR100Dataset,
    EMNISTDataset,
    Example,
    FashionMNISTDataset,
    KMNISTDataset,
    MNISTDataset,
)

__all__ = [
    "CIFAR10Dataset",
    "CIFAR100Dataset",
    "EMNISTDataset",
    "Example",
    "FashionMNISTDataset",
    "KMNISTDataset",
    "MNISTDataset",
]
