"""One small data set of each format, written once for all tests of this folder."""

import pytest
from helpers.example_datasets import write_all


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A folder with a data set of each format, which tests only read."""
    folder = tmp_path_factory.mktemp("formats")
    write_all(folder)
    return folder


@pytest.fixture
def copied(written, tmp_path):
    """The same in a folder of its own, for tests that damage it."""
    import shutil

    return shutil.copytree(written, tmp_path / "data")
