"""Files around the code say the same: versions, bounds, lists of tests, workflows."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tools import newest

import bushel

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def requirements():
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]:
        yield from group


def bounds(sign: str) -> dict[str, str]:
    """Versions in pyproject.toml by package, of the requirements with this sign."""
    found = (re.match(rf"([\w-]+)(?:\[\w+\])?{sign}([\d.]+)", text) for text in requirements())
    return {match[1].replace("-", "_"): match[2] for match in found if match}


def test_the_oldest_packages_are_those_that_are_promised():
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if "==" in line)
    promised = bounds(">=")
    for name, version in oldest.items():
        if name != "jaxlib":
            assert version.removesuffix(".0").startswith(promised[name]), name
    # Of these no old version is tried: they need a cluster, a JAX that is newer than the oldest, or a browser, or they
    # build the site.
    not_tried = {"ray", "orbax_checkpoint", "gymnax", "rerun_sdk", "starlette", "uvicorn"}
    not_tried |= {"sphinx", "sphinx_book_theme", "myst_nb"}
    assert promised.keys() - oldest.keys() <= not_tried


def test_the_versions_that_documents_call_tested_are_those_of_the_project():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([\w-]+)[^|]*\| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    rows = {name.lower(): (oldest, newest) for name, oldest, newest in table}
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if "==" in line and "jaxlib" not in line)
    names = {"av": "pyav"}
    assert {names.get(name, name): version for name, version in oldest.items()}.items() <= {
        name: version for name, (version, _) in rows.items()
    }.items()
    pythons = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert rows["python"] == (pythons[0], pythons[-1])


def test_the_newest_packages_are_those_of_the_extras_of_users():
    packages = newest.list_packages()
    assert {"numpy", "jax", "av", "pyarrow", "ray", "orbax-checkpoint"} <= set(packages)
    assert not {"pytest", "grain", "torch", "sphinx", "bushel-data"} & set(packages)
    version = [sys.executable, "-c", "import sys; print(sys.version_info.minor)"]
    found = subprocess.run([newest.find_python(), *version[1:]], capture_output=True, text=True, check=True)
    assert int(found.stdout) >= sys.version_info.minor


def test_hooks_have_the_versions_of_the_tests():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    versions = {hook["repo"].rpartition("/")[2]: hook["rev"] for hook in hooks["repos"]}
    exact = bounds("==")
    assert versions["ruff-pre-commit"] == f"v{exact['ruff']}"
    assert versions["pyright-python"] == f"v{exact['pyright']}"


def test_every_promised_python_is_tested():
    promised = sorted(text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_the_makefile_has(workflow):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: make ([\w-]+)", workflow.read_text(encoding="utf-8")):
        if target != "docs":
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_tests_without_extras_exist():
    names = (ROOT / "tests" / "core.txt").read_text(encoding="utf-8").split()
    assert len(names) > 40
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_the_changelog_has_this_version():
    assert f"\n## [{bushel.__version__}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert ".".join(map(str, bushel.__version_info__)) == bushel.__version__
