"""What is a library, and what is the user's own: by the records of what was installed, and not by folder."""

import hashlib
import importlib
import json
import sys

import pytest

from bushel._src.base import code_inspection
from bushel._src.base.code_inspection import is_users_code
from bushel._src.state.digest import examine


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a module into a folder named site-packages, with the files that pip would write, and imports it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = []

    def install(
        module, *, name=None, origin=None, record=True, top_level=False, installer="pip", text="def f(x): return x\n"
    ):
        path = folder / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name is not None:
            info = folder / f"{name}-1.0.dist-info"
            info.mkdir(exist_ok=True)
            if record:
                content = hashlib.sha256(text.encode()).hexdigest()
                lines = [f"{path.relative_to(folder)},sha256={content},3", f"{info.name}/RECORD,,"]
                info.joinpath("RECORD").write_text("\n".join(lines))
            info.joinpath("INSTALLER").write_text(f"{installer}\n")
            if top_level:
                info.joinpath("top_level.txt").write_text(f"{module.partition('.')[0]}\n")
            if origin is not None:
                info.joinpath("direct_url.json").write_text(json.dumps(origin))
        for cached in (code_inspection._list_distributions, code_inspection._find_distributions_with,
                       code_inspection._list_files, code_inspection._is_users_distribution,
                       code_inspection._is_users_module,
                       code_inspection.find_build, code_inspection._list_archives):  # fmt: skip
            cached.cache_clear()
        importlib.invalidate_caches()
        sys.modules.pop(module, None)
        loaded.append(module)
        return importlib.import_module(module)

    yield install
    for module in loaded:
        for name in [name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]]:
            del sys.modules[name]
    code_inspection._is_users_module.cache_clear()


@pytest.mark.parametrize("name", ["mine_lib", "Mine.Lib", "quite-another"])
@pytest.mark.parametrize("module", ["mine_lib", "mine_lib.inner.deep"])
def test_a_distribution_from_an_index_is_a_library(install, name, module):
    assert not is_users_code(install(module, name=name).f)


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
    assert is_users_code(install("mine_lib", name="mine-lib", origin=origin).f)


def test_a_wheel_is_a_library(install):
    assert not is_users_code(
        install("mine_lib", name="mine-lib", origin={"url": "file:///a.whl", "archive_info": {}}).f
    )


def test_what_was_installed_from_an_archive_on_this_machine_counts_by_the_content_of_its_files(install):
    def examine_version(url, number):
        text = f"def f(x): return x * {number}\n"
        return examine(install("mine_lib", name="mine-lib", origin={"url": url, "archive_info": {}}, text=text).f)

    local = [examine_version("file:///a.whl", number) for number in (1, 2, 1)]
    assert local[0].digest == local[2].digest != local[1].digest
    assert [part.name for part in local[0].parts] == ["mine_lib"]
    index = [examine_version("https://example.com/a.whl", number) for number in (1, 2)]
    assert index[0].digest == index[1].digest and not index[0].parts


def test_a_package_of_conda_is_a_library_wherever_it_was_built(install):
    origin = {"url": "file:///home/conda/feedstock_root/build_artifacts/mine_lib/work", "dir_info": {}}
    assert not is_users_code(install("mine_lib", name="mine-lib", origin=origin, installer="conda").f)


def test_a_checkout_with_an_egg_info_beside_it_is_the_users(tmp_path):
    (tmp_path / "mine_lib.egg-info").mkdir()
    (tmp_path / "mine_lib.egg-info" / "top_level.txt").write_text("mine_lib\n")
    assert not code_inspection.is_installed_library(str(tmp_path / "mine_lib.py"), "mine_lib")


def test_a_module_that_no_distribution_has_installed_is_the_users(install):
    install("bought", name="bought")
    assert is_users_code(install("mine_copied").f)
    assert is_users_code(install("bought_extra.inner").f)


def test_a_distribution_of_the_operating_system_has_no_record(install):
    assert not is_users_code(install("mine_lib", name="mine-lib", record=False, top_level=True).f)


def test_the_standard_library_numpy_and_bushel_are_libraries():
    import dataclasses
    import sysconfig

    import numpy
    import yaml

    import bushel

    assert not any(map(is_users_code, (dataclasses.dataclass, sysconfig.get_path, numpy.lib.stride_tricks.as_strided)))
    assert not any(
        map(is_users_code, (yaml.safe_load, yaml.Loader, bushel.MapDataset, bushel.sources.convert, pytest.fixture))
    )
    assert is_users_code(install)
    assert is_users_code(type("Made", (), {}))
