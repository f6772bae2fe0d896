"""One cluster for all tests of a run: starting it takes seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import ray_clusters


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of three nodes, to which this process is connected."""
    if importlib.util.find_spec("ray") is None:  # not imported yet: Ray reads its settings when it is
        pytest.skip("Ray is not installed.")
    with ray_clusters.running_cluster(3) as cluster:
        yield cluster
