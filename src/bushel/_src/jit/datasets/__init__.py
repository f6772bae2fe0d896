"""Well-known data sets, read from their published files: MNIST and its family, CIFAR, CelebA, two time series."""
