"""What is a library, and what is the user's own: by the records of what was installed, and not by folder."""

import importlib
import json
import sys

import pytest

from bushel.base import distributions, following
from bushel.base.following import is_own


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a module into a folder named site-packages, with the files that pip would write, and imports it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = []

    def install(module, *, name=None, origin=None, record=True, top_level=False, text="def f(x): return x\n"):
        path = folder / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name is not None:
            info = folder / f"{name}-1.0.dist-info"
            info.mkdir()
            if record:
                info.joinpath("RECORD").write_text(f"{path.relative_to(folder)},sha256=x,3\n{info.name}/RECORD,,\n")
            if top_level:
                info.joinpath("top_level.txt").write_text(f"{module.partition('.')[0]}\n")
            if origin is not None:
                info.joinpath("direct_url.json").write_text(json.dumps(origin))
        for cached in (distributions._list_distributions, distributions._find_distributions_with,
                       distributions._list_files, distributions._is_own_distribution, following._is_own):  # fmt: skip
            cached.cache_clear()
        importlib.invalidate_caches()
        loaded.append(module)
        return importlib.import_module(module)

    yield install
    for module in loaded:
        for name in [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]:
            del sys.modules[name]
    following._is_own.cache_clear()


@pytest.mark.parametrize("name", ["mine_lib", "Mine.Lib", "quite-another"])
@pytest.mark.parametrize("module", ["mine_lib", "mine_lib.inner.deep"])
def test_a_distribution_from_an_index_is_a_library(install, name, module):
    assert not is_own(install(module, name=name).f)


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///home/me/mine", "dir_info": {}},
        {"url": "file:///home/me/mine", "dir_info": {"editable": True}},
        {"url": "https://example.com/me/mine.git", "vcs_info": {"vcs": "git", "commit_id": "a"}},
    ],
    ids=["folder", "editable", "repository"],
)
def test_a_distribution_from_a_folder_or_a_repository_is_the_users(install, origin):
    assert is_own(install("mine_lib", name="mine-lib", origin=origin).f)


def test_a_wheel_is_a_library(install):
    assert not is_own(install("mine_lib", name="mine-lib", origin={"url": "file:///a.whl", "archive_info": {}}).f)


def test_a_module_that_no_distribution_has_installed_is_the_users(install):
    install("bought", name="bought")
    assert is_own(install("mine_copied").f)
    assert is_own(install("bought_extra.inner").f)


def test_a_distribution_of_the_operating_system_has_no_record(install):
    assert not is_own(install("mine_lib", name="mine-lib", record=False, top_level=True).f)


def test_the_standard_library_numpy_and_bushel_are_libraries():
    import dataclasses
    import sysconfig

    import numpy
    import yaml

    import bushel

    assert not any(map(is_own, (dataclasses.dataclass, sysconfig.get_path, numpy.lib.stride_tricks.as_strided)))
    assert not any(
        map(is_own, (yaml.safe_load, yaml.Loader, bushel.MapDataset, bushel.sources.convert, pytest.fixture))
    )
    assert is_own(install)
    assert is_own(type("Made", (), {}))
