"""`bushel view train.py:make_dataset` and the other commands run an ordinary script: once, with its own arguments."""

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from bushel._src import cli
from bushel._src.view.scripts import load_object, show_target
from bushel._src.view.targets import as_dataset, open_session

SCRIPT = '''
"""A program that somebody wrote without a thought of Bushel's commands: arguments, data and training at the top."""
import argparse
import dataclasses
import os
import sys

import numpy as np

import bushel
import lengths_of_texts

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "runs.txt"), "a") as log:
    print(os.getpid(), file=log)
arguments = argparse.ArgumentParser()
arguments.add_argument("--batch", type=int, default=2)
options = arguments.parse_args()


@dataclasses.dataclass
class Sample:
    """An element of a class of the script: workers send it back."""

    index: int


class Double(bushel.transforms.Map):
    def map(self, element):
        return {"x": element["x"] * 2, "n": lengths_of_texts.measure("abc")}


def unwrap(sample):
    assert isinstance(sample, Sample)
    return {"x": np.float32(sample.index)}


def pipeline(workers):
    ds = bushel.MapDataset.range(12).seed(0).shuffle().map(Sample).map(unwrap).map(Double()).batch(options.batch)
    if workers == "auto":
        return ds.to_iter_dataset().mp_prefetch()
    return ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers))


def make_0():
    return pipeline(0)


def make_2():
    return pipeline(2)


def make_auto():
    return pipeline("auto")


def samples():
    return bushel.MapDataset.range(6).map(Sample).to_iter_dataset().mp_prefetch(
        bushel.MultiprocessingOptions(num_workers=2)
    )


def returns_nothing():
    pipeline(0)


train = bushel.MapDataset.range(12).batch(3)
forever = train.repeat()
for batch in make_2():  # the training, which nobody has put behind a guard
    assert isinstance(batch["x"], np.ndarray)
if __name__ == "__main__":
    raise SystemExit("Guarded code must not run.")
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "lengths_of_texts.py").write_text("measure = len\n")
    monkeypatch.chdir(tmp_path)  # not the folder of the script
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "lengths_of_texts", raising=False)
    return folder / "train.py"


def count_runs(script: Path) -> int:
    return len((script.parent / "runs.txt").read_text().splitlines())


COMMANDS = {
    "inspect": "inspect {target}",
    "stats": "stats {target} --limit 3 --quiet",
    "bench": "bench {target} --seconds 0.05 --workers 0,2 --quiet",
    "report": "report {target} r.html --stats --limit 3 --bench --seconds 0.05 --quiet",
}


@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_runs_once_under_every_command(command, workers, script, capsys):
    words = COMMANDS[command].format(target=f"{script}:make_{workers}")
    assert cli.main([*shlex.split(words), "--", "--batch", "3"]) == 0, capsys.readouterr().err
    assert count_runs(script) == 1
    if command in ("inspect", "bench"):
        assert f"{script}:make_{workers} -- --batch 3" in capsys.readouterr().out
    if command == "report":
        assert f"{script}:make_{workers} -- --batch 3" in Path("r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_a_script_runs_once_in_the_viewer(workers, script):
    session = open_session(f"{script}:make_{workers}", arguments=["--batch", "3"])
    try:
        assert session.target == f"{script}:make_{workers} -- --batch 3"
        elements = list(session.dataset)  # with its workers
        assert len(elements) == 4 and set(elements[0]["n"]) == {3}
    finally:
        session.close()
    assert count_runs(script) == 1


def test_the_command_is_the_script_for_the_script(script):
    """As a program: `sys.argv` and `sys.path[0]` are those of `python train.py`, and the page says what was run."""
    text = script.read_text()
    text += "assert sys.argv == [sys.argv[0], '--batch', '4'] and sys.argv[0].endswith('train.py'), sys.argv\n"
    text += "assert sys.path[0] == here and os.path.dirname(sys.executable) not in sys.path, sys.path\n"
    script.write_text(text)
    command = [sys.executable, "-m", "bushel", "view", f"{script}:make_2", "--no-browser", "--", "--batch", "4"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes) as program:
        try:
            line = program.stdout.readline().decode()
            assert line.startswith(f"{script}:make_2 -- --batch 4 at http"), (line, program.stderr.read())
            base, token = line.split(" at ")[1].strip().split("#token=")
            request = urllib.request.Request(f"{base}api/info", headers={"X-Bushel-Token": token})
            with urllib.request.urlopen(request, timeout=250) as response:
                assert json.load(response)["target"] == f"{script}:make_2 -- --batch 4"
        finally:
            program.kill()
    assert count_runs(script) == 1


def test_elements_of_a_class_of_the_script_are_of_that_class(script):
    ds = load_object(f"{script}:samples")
    elements = list(ds)
    module = sys.modules[type(elements[0]).__module__]
    assert module.__file__ == str(script) and all(type(element) is module.Sample for element in elements)
    assert [element.index for element in elements] == list(range(6)) and count_runs(script) == 1


def test_a_state_of_the_program_fits_what_a_command_loads(script):
    """The digest of a function or class does not depend on whether the script is the program or a target."""
    program = script.read_text().replace('raise SystemExit("Guarded code must not run.")', "pass")
    program += "import json\nit = iter(make_2())\nnext(it)\nprint(json.dumps(it.get_state()))\n"
    (script.parent / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(script.parent / "program.py")], capture_output=True, text=True, timeout=250, check=True
    )
    iterator = iter(load_object(f"{script}:make_0"))
    expected = list(iterator)[1]
    iterator.set_state(json.loads(done.stdout))
    assert np.array_equal(next(iterator)["x"], expected["x"])


def test_a_file_without_a_name_is_listed(script, capsys):
    for command in ("view", "inspect", "stats", "bench", "report"):
        assert cli.main([command, str(script), "--", "--batch", "4"]) == 0
    listed = capsys.readouterr().out
    assert f"{script} -- --batch 4 has these datasets and functions:" in listed
    assert "train" in listed and "MapDataset, 4 elements" in listed and "MapDataset, endless" in listed
    assert "make_auto()" in listed and "pipeline(workers)" in listed and ", needs workers" in listed
    assert f"Name one: bushel stats {script}:train -- --batch 4" in listed
    assert "measure" not in listed and "Sample" not in listed  # imported; a class
    assert count_runs(script) == 5  # once for each command


def test_a_file_without_datasets(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("def build(path):\n    return path\n")
    assert cli.main(["view", f"{tmp_path}/empty.py"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/empty.py defines no dataset, and no function that can be called without arguments. Its functions "
        "need arguments: build. Write a function that returns the dataset.\n"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("make_atuo", [], "{script} has no 'make_atuo'. Did you mean 'make_auto'?"),
        ("unrelated", [], "{script} has no 'unrelated'. It has train, forever, unwrap, pipeline, make_0, make_2"),
        ("pipeline", [], "{script}:pipeline cannot be called without arguments: it needs workers. Give the parameters"),
        ("returns_nothing", [], "{script}:returns_nothing returned None. Let the function return the dataset: forgot"),
        (
            "train",
            ["--size", "3"],
            "{script} ended the program itself (exit code 2), so there is no dataset. Its argum",
        ),
    ],
)
def test_what_a_target_gets_wrong_is_said(name, arguments, message, script, capsys):
    assert cli.main(["inspect", f"{script}:{name}", "--", *arguments]) == 1
    said = capsys.readouterr().err
    assert message.format(script=script) in said and "Traceback" not in said


def test_a_script_that_needs_arguments_says_how_to_pass_them(tmp_path, capsys):
    lines = ["import argparse", "p = argparse.ArgumentParser()", "p.add_argument('data')", "print(p.parse_args().data)"]
    (tmp_path / "strict.py").write_text("\n".join([*lines, "ds = [1, 2]"]))
    assert cli.main(["inspect", f"{tmp_path}/strict.py:ds"]) == 1
    assert (
        f"If it needs arguments, pass them behind two dashes: {tmp_path}/strict.py:ds -- --b" in capsys.readouterr().err
    )
    before = sys.argv
    assert cli.main(["inspect", f"{tmp_path}/strict.py:ds", "--", "here"]) == 0
    assert capsys.readouterr().out.startswith("here\n") and sys.argv is before


SHAPES_OF_SCRIPTS = """
import bushel

class Records:
    def __len__(self):
        return 3

    def __getitem__(self, position):
        return position

def both():
    ds = bushel.MapDataset.range(10)
    return ds[:8], ds[8:]

def by_name():
    return dict(zip(("train", "validation"), both()))

def rows():
    yield {"x": 1}

def count():
    return 3
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "both",
            "This tuple holds several datasets. Name one of them: a variable, or a function such as "
            "`def make_train(): return make_datasets()[0]`.",
        ),
        ("by_name", "This dict holds several datasets. Name one of them: a variable, or a function such as `def make"),
        ("rows", "got generator. Write `bushel.IterDataset.source(function)` for a function that"),
        ("count", "A dataset, a loader or a source is needed, got int. Name one, or a function without arguments"),
    ],
)
def test_a_function_that_returns_something_else(name, message, tmp_path, capsys):
    (tmp_path / "train.py").write_text(SHAPES_OF_SCRIPTS)
    for command in ("inspect", "stats", "bench", "report", "view"):
        assert cli.main([command, f"{tmp_path}/train.py:{name}"]) == 1, command
        assert message in capsys.readouterr().err


def test_a_class_of_records_is_made(tmp_path):
    """A class that is a source is called, as a function that returns one."""
    (tmp_path / "train.py").write_text(SHAPES_OF_SCRIPTS)
    assert list(as_dataset(load_object(f"{tmp_path}/train.py:Records"))) == [0, 1, 2]


def test_arguments_of_the_script_without_dashes_are_explained(script, capsys):
    with pytest.raises(SystemExit):
        cli.main(["stats", f"{script}:train", "--batch", "8", "--api-key=abcdef"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --batch 8 --api-key=" in said and "abcdef" not in said
    assert f"stand behind two dashes: bushel stats {script}:train -- --batch 8 --api-key=..." in said
    with pytest.raises(SystemExit):
        cli.main(["stats", "data.npy", "--batch", "8"])
    assert "two dashes" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    assert "bushel bench train.py:make_dataset -- --batch 8" in " ".join(capsys.readouterr().out.split())
    assert not (script.parent / "runs.txt").exists()


def test_names_of_files_and_modules_that_are_not_there(script, tmp_path, capsys):
    assert cli.main(["inspect", "project/trian.py:train"]) == 1
    assert capsys.readouterr().err == "bushel: project/trian.py does not exist. Did you mean project/train.py?\n"
    assert cli.main(["inspect", "projekt.train:train"]) == 1
    assert capsys.readouterr().err == (
        f"bushel: No module named 'projekt': it is neither in {tmp_path} nor installed. Of a file, name the path: "
        "path/to/train.py:make_dataset\n"
    )


@pytest.mark.filterwarnings("ignore:can't resolve package:ImportWarning")  # of the relative import, as in `python`
def test_a_script_of_a_package_is_named_as_a_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "robot_data").mkdir()
    (tmp_path / "robot_data" / "sizes.py").write_text("SIZE = 3\n")
    (tmp_path / "robot_data" / "train.py").write_text(
        "from .sizes import SIZE\nimport bushel\nds = bushel.MapDataset.range(SIZE)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["stats", "robot_data/train.py:ds"]) == 1
    way_out = f"Go to {tmp_path} and name the module: robot_data.train:make_dataset"
    assert way_out in capsys.readouterr().err
    assert cli.main(["stats", "robot_data.train:ds"]) == 0


def test_a_name_with_a_space_can_be_copied(tmp_path, capsys):
    (tmp_path / "my train.py").write_text("ds = [1, 2]\ndef f(): return ds\n")
    assert cli.main(["view", f"{tmp_path}/my train.py"]) == 0
    assert f"Name one: bushel view '{tmp_path}/my train.py:f'" in capsys.readouterr().out


def test_long_steps_are_broken_into_lines(tmp_path, capsys):
    fields = ", ".join(f"'entry_{n}': np.zeros({n})" for n in range(1, 20))
    (tmp_path / "wide.py").write_text(
        f"import bushel, numpy as np\ndef widen(n): return dict({{{fields}}})\n"
        "ds = bushel.MapDataset.range(3).map(widen).batch(2)\n"
    )
    assert cli.main(["inspect", f"{tmp_path}/wide.py:ds"]) == 0
    listed = capsys.readouterr().out
    assert "entry_19" in listed and max(map(len, listed.splitlines())) <= 120


def test_arguments_without_a_script_are_refused(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(3))
    for command in ("inspect", "stats", "bench", "report"):
        assert cli.main([command, f"{tmp_path}/a.npy", "--", "--batch", "4"]) == 1
        assert f"are for a script such as train.py:make_dataset; {tmp_path}/a.npy is none." in capsys.readouterr().err


def test_a_second_script_does_not_take_the_place_of_the_first(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(
            f"import bushel\nVALUE = {value}\ndef give(x): return VALUE\nds = bushel.MapDataset.range(3).map(give)\n"
        )
    first, second = (load_object(f"{tmp_path}/{folder}/train.py:ds") for folder in "ab")
    assert list(first) == [1, 1, 1] and list(second) == [2, 2, 2]
    again = load_object(f"{tmp_path}/a/train.py:ds")  # the file may have changed since
    assert list(again) == [1, 1, 1]


def test_the_arguments_of_a_script_are_shown_without_secrets():
    words = ["--batch", "8", "--api-key=abcdef", "--hf-token", "xyz", "--url=https://me:pass@host/x?sig=1", "a b"]
    assert show_target("t.py:ds", words) == (
        "t.py:ds -- --batch 8 --api-key=... --hf-token ... '--url=https://...@host/x?...' 'a b'"
    )


def run_command(*words, folder=None):
    command = [sys.executable, "-m", "bushel", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, cwd=folder)


PICKLES = """
import os, pickle
import bushel

class Episode:
    def __init__(self, steps): self.steps = steps

here = os.path.dirname(os.path.abspath(__file__))
if not os.path.exists(f"{here}/episodes.pkl"):
    with open(f"{here}/episodes.pkl", "wb") as file:
        pickle.dump([Episode(n) for n in range(5)], file)
with open(f"{here}/episodes.pkl", "rb") as file:
    episodes = pickle.load(file)
import __main__
assert __main__.Episode is Episode and all(type(episode) is Episode for episode in episodes)

def make_dataset():
    ds = bushel.MapDataset.source(episodes).map(lambda episode: {"steps": episode.steps})
    return ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
"""


def test_what_the_program_has_pickled_is_found_by_a_command(tmp_path):
    (tmp_path / "train.py").write_text(PICKLES)
    subprocess.run([sys.executable, str(tmp_path / "train.py")], check=True, timeout=250)
    done = run_command("stats", f"{tmp_path}/train.py:make_dataset", "--quiet", "--limit", "5")
    assert done.returncode == 0 and "steps" in done.stdout, done.stderr


PROCESSES = """
import concurrent.futures, multiprocessing, os, sys
import bushel

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "runs.txt"), "a") as log:
    print(os.getpid(), file=log)
context = multiprocessing.get_context(sys.argv[1])

class Row:
    def __init__(self, n): self.n = n

def prepare(n):
    return Row(n.n + 1 if isinstance(n, Row) else n)

def make_dataset():
    with context.Pool(1) as pool:
        rows = pool.map(prepare, range(4))
        rows = pool.map(prepare, rows)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        rows = list(pool.map(prepare, rows))
    assert all(type(row) is Row for row in rows)
    return bushel.MapDataset.source([row.n for row in rows])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_script_may_start_processes_itself(method, tmp_path):
    (tmp_path / "train.py").write_text(PROCESSES)
    done = run_command("stats", f"{tmp_path}/train.py:make_dataset", "--quiet", "--json", "--", method)
    assert done.returncode == 0, done.stderr
    assert '"max": 5' in " ".join(done.stdout.split()) and count_runs(tmp_path / "train.py") == 1


def test_files_are_written_where_the_command_was_started(tmp_path):
    """Also if the script changes the current folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.py").write_text(
        "import os\nimport bushel\nos.chdir('elsewhere')\nds = bushel.MapDataset.range(4)\n"
    )
    for words in (["report", "train.py:ds", "r.html"], ["stats", "train.py:ds", "s.json"]):
        assert run_command(*words, "--quiet", folder=tmp_path).returncode == 0
    words = ["bench", "train.py:ds", "--workers", "0", "--seconds", "0.01", "--profile", "p.json", "--quiet"]
    assert run_command(*words, folder=tmp_path).returncode == 0
    assert {file.name for file in tmp_path.iterdir()} == {"elsewhere", "train.py", "r.html", "s.json", "p.json"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_name_under_the_guard_is_explained(tmp_path, capsys):
    (tmp_path / "train.py").write_text(
        "import bushel\nif __name__ == '__main__':\n    ds = bushel.MapDataset.range(3)\n"
    )
    assert cli.main(["inspect", f"{tmp_path}/train.py:ds"]) == 1
    assert capsys.readouterr().err == (
        f"bushel: {tmp_path}/train.py defines 'ds' only under `if __name__ == \"__main__\":`, which does not run here. "
        "Define it above, or in a function.\n"
    )


def test_a_syntax_error_shows_the_line_of_the_script(tmp_path, capsys):
    (tmp_path / "train.py").write_text("import bushel\ndef f(:\n    pass\n")
    assert cli.main(["inspect", f"{tmp_path}/train.py:f"]) == 1
    said = capsys.readouterr().err
    assert (
        said.startswith(f'  File "{tmp_path}/train.py", line 2') and "SyntaxError" in said and "Traceback" not in said
    )
