"""A plain `import bushel` is light: it loads none of the large packages and takes little time."""

import json
import os
import subprocess
import sys

import pytest

import bushel

HEAVY = {
    "absl",
    "grain",
    "jax",
    "jaxlib",
    "orbax",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "ray",
    "tensorflow",
    "torch",
    "tqdm",
}
LIMIT = 6.0
"""How many times the CPU time of `import numpy` the import of bushel may take. NumPy is loaded first, and apart."""

CHILD = """
import json, sys, time
begun = time.process_time()
import numpy
start = time.process_time()
import bushel
{more}
ratio = (time.process_time() - start) / (start - begun)
print(json.dumps({{"ratio": ratio, "packages": sorted({{name.partition(".")[0] for name in sys.modules}})}}))
"""


def import_in_child(more: str = "") -> dict:
    """Import bushel after NumPy in a fresh process, then run `more`: CPU time as a ratio, and the packages loaded."""
    # NumPy's BLAS threads spin while they start: a cost that grows with the cores, and not ours.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD.format(more=more)]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return json.loads(child.stdout)


def heavy_packages(more: str = "") -> set[str]:
    return HEAVY & set(import_in_child(more)["packages"])


def best_ratio(more: str = "") -> float:
    return min(import_in_child(more)["ratio"] for _ in range(5))


def test_import_loads_no_heavy_package():
    assert heavy_packages() == set()


@pytest.mark.serial
def test_import_is_quick():
    assert best_ratio(more="bushel.MapDataset, bushel.DataLoader") < LIMIT  # names are loaded when used


def test_the_package_guard_can_fail():
    assert {"jax", "jaxlib"} <= heavy_packages(more="import jax")


def test_the_time_guard_can_fail():
    slow = f"while time.process_time() - start < {LIMIT} * (start - begun): pass"
    assert import_in_child(more=slow)["ratio"] >= LIMIT  # once is enough: no run can be quicker


def test_modules_of_extras_are_attributes():
    child = "import bushel; bushel.jit.ArraySource, bushel.trajectory.make_single_dataset, bushel.device_put"
    subprocess.run([sys.executable, "-c", child + ", bushel.prometheus.export"], check=True)


def test_dir_shows_public_names_alone():
    shown = {name for name in dir(bushel) if not name.startswith("__")}
    assert {"MapDataset", "jit", "trajectory", "prometheus", "device"} <= shown
    assert not {"Any", "TYPE_CHECKING", "importlib"} & shown
    assert not {name for name in shown if name.startswith("_")}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'bushel' has no attribute 'nothing'"):
        bushel.nothing  # noqa: B018
