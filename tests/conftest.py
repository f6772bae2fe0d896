"""Hypothesis draws the same cases in every run of `make test`, and new ones in every run of `make test-all`.

A case may take as long as it likes: a busy machine is no failure. What is kept between runs lies in a folder that is
new for every run, or a later one would test what an earlier one has kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("new", derandomize=False, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("same" if config.option.markexpr == "not slow" else "new")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUSHEL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
