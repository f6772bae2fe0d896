"""`bushel run`: programs that were written for Grain, unchanged, print the same on Bushel."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
# Programs of other tests.
OTHERS = {"device_cases", "device_program", "fill_disk", "global_job", "helper_module", "killed_conversion"}
OTHERS |= {"mesh_cases", "read_damaged"}
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem not in OTHERS)
BUSHEL = [sys.executable, "-m", "bushel", "run"]


def started(command, **more):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more
    )


def finished(process):
    try:
        output, errors = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, output, errors


# What these two do, test_data_loader.py and test_subclasses.py compare with Grain, too.
SLOW = ["loader", "own_classes"]
QUICK = [name for name in NAMES if name not in SLOW]
# The import of Grain takes longer than these programs, so one process runs all of them on Grain. Not those with
# workers: they import the program again.
ONE_AFTER_THE_OTHER = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print("ended:", path)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_program_with_workers_prints_the_same(name):
    script = PROGRAMS / f"{name}.py"
    theirs, ours = started([sys.executable, script]), started([*BUSHEL, script])
    check_equal(finished(theirs), finished(ours))


def test_a_program_for_grain_prints_the_same():
    scripts = [PROGRAMS / f"{name}.py" for name in QUICK]
    theirs = started([sys.executable, "-c", ONE_AFTER_THE_OTHER, *scripts])
    ours = [finished(started([*BUSHEL, script])) for script in scripts]
    code, rest, errors = finished(theirs)
    assert code == 0, errors
    for script, found in zip(scripts, ours, strict=True):
        expected, _, rest = rest.partition(f"ended: {script}\n")
        check_equal((code, expected, errors), found)
    assert rest == ""


def check_equal(expected, found):
    assert expected[0] == 0, expected[2]
    assert found[0] == 0, found[2]
    assert found[1] == expected[1]
    assert len(expected[1].splitlines()) >= 4


def run(tmp_path, text, *arguments):
    script = tmp_path / "program.py"
    script.write_text(text)
    return finished(started([*BUSHEL, script, *arguments], cwd=tmp_path))


def test_there_are_at_least_six_programs():
    assert len(NAMES) >= 6


def test_bushel_run_replaces_grain_by_bushel(tmp_path):
    text = (
        "import grain, grain.python.experimental as e, sys\nprint(grain.__name__, e.__name__, sys.argv[1:], __name__)"
    )
    code, output, errors = run(tmp_path, text, "--flag", "3")
    assert (code, output) == (0, "bushel bushel.experimental ['--flag', '3'] __main__\n"), errors


def test_an_error_of_the_program_is_shown_as_python_shows_it(tmp_path):
    code, _, errors = run(tmp_path, "def fail():\n    raise ValueError('why')\n\nfail()\n")
    assert code == 1
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: why"
    assert "bushel/cli" not in errors


def test_an_exit_code_of_the_program_is_kept(tmp_path):
    assert run(tmp_path, "import sys; sys.exit(7)")[0] == 7


def test_a_module_runs_as_under_python(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("def grow(x):\n    return x + 1\n")
    (package / "__main__.py").write_text("print('main of the package')\n")
    (package / "train.py").write_text(
        "import sys, grain\n"
        "from project.helper import grow\n"
        "class Twice:\n"
        "    def __call__(self, x):\n"
        "        return 2 * grow(x)\n"
        "if __name__ == '__main__':\n"
        "    print(grain.__name__, sys.argv[1:], __spec__.name)\n"
        "    ds = grain.MapDataset.range(3).map(Twice()).to_iter_dataset()\n"
        "    print([int(x) for x in ds.mp_prefetch(grain.MultiprocessingOptions(1))])\n"
        "    if 'fail' in sys.argv:\n"
        "        raise ValueError('why')\n"
    )

    def run_module(*arguments):
        return finished(started([*BUSHEL, "-m", *arguments], cwd=tmp_path))

    code, output, errors = run_module("project.train", "--flag", "3")
    assert (code, output) == (0, "bushel ['--flag', '3'] project.train\n[2, 4, 6]\n"), errors
    assert run_module("project")[:2] == (0, "main of the package\n")
    code, _, errors = run_module("project.train", "fail")
    lines = errors.splitlines()
    assert code == 1 and lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: why"
    assert "runpy" not in errors and "bushel/cli" not in errors
    for name in ("nowhere", "project.nowhere", "nowhere.train"):
        code, _, errors = run_module(name)
        assert code == 1 and f"there is no module '{name}'" in errors


def test_what_is_private_in_grain_is_told(tmp_path):
    code, _, errors = run(tmp_path, "from grain._src.core import transforms")
    assert code == 1
    assert "ModuleNotFoundError: This program runs on Bushel" in errors and "grain._src is not one of them" in errors


def test_a_program_that_is_not_there_is_told():
    code, _, errors = finished(started([*BUSHEL, "nowhere.py"]))
    assert code == 1
    assert errors.startswith("bushel: ") and "nowhere.py" in errors


def test_without_the_command_grain_is_grain():
    import grain

    assert grain.__name__ == "grain" and grain.__file__ is not None
    assert Path(grain.__file__).parent.name == "grain"  # not src/bushel; a folder above may have any name


FLAGS = """
from absl import app, flags
import grain

flags.DEFINE_integer("steps", 2, "of this program")


def main(argv):
    print(grain.__name__, argv[1:], flags.FLAGS.steps, flags.FLAGS.grain_py_debug_mode)
    print(grain.config.py_debug_mode, grain.config.py_traceback_filtering, grain.config.tf_lookup_batch_size)


app.run(main)
"""


def test_flags_of_grain_are_accepted_and_reach_the_settings(tmp_path):
    arguments = ["--grain_py_debug_mode", "--grain_py_traceback_filtering=off", "--steps=3", "more"]
    arguments += ["--grain_enable_multiprocess_worker_profiling=false", "--grain_tf_lookup_batch_size=7"]
    script = tmp_path / "program.py"
    script.write_text(FLAGS)
    theirs, ours = started([sys.executable, script, *arguments]), started([*BUSHEL, script, *arguments])
    expected, found = finished(theirs), finished(ours)
    assert expected[0] == found[0] == 0, found[2]
    assert expected[1] == "grain ['more'] 3 True\nTrue off 7\n"
    assert found[1] == expected[1].replace("grain [", "bushel [")
    code, _, errors = run(tmp_path, FLAGS, "--grain_nothing")
    assert code == 1 and "Unknown command line flag 'grain_nothing'" in errors


SCRAPED = """
import os, urllib.request
import grain

ds = grain.MapDataset.range(20).map(abs).to_iter_dataset().batch(4)
with iter(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))) as it:
    list(it)
    port = os.environ["PYGRAIN_PROMETHEUS_PORT"]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    print([line for line in text.splitlines() if line.startswith("bushel_elements_total")])
"""


def test_grains_variable_opens_the_port_for_prometheus(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY", "true")
    monkeypatch.setenv("PYGRAIN_PROMETHEUS_PORT", str(port))
    code, output, errors = run(tmp_path, SCRAPED)
    assert (code, output) == (0, "['bushel_elements_total{iterator=\"iterator 0\"} 5.0']\n"), errors
    with socket.create_server(("0.0.0.0", port)):  # a port that is taken is a warning, not an end
        code, _, errors = run(tmp_path, SCRAPED.partition("    port")[0])
    assert code == 0 and f"port {port} did not open" in errors
