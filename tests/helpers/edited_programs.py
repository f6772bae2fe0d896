"""Programs that are edited between two runs, and what their states, caches, columns and saved folders make of it.

Many programs run in one process, one after the other, each as a script of its own: `run` starts such a process.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap

HEAD = """
import bushel
import collections, contextlib, dataclasses, enum, functools, itertools, operator, os, pathlib, re, threading, types
from typing import NamedTuple
import numpy as np
"""

RUNNER = """
import contextlib, io, json, os, runpy, sys, warnings
import bushel
from bushel import StateMismatch

second, work = sys.argv[1] == "second", sys.argv[2]
sys.dont_write_bytecode = True
results = {}


def counted(folder):
    return sum(name.endswith(".npy") or os.path.isdir(os.path.join(folder, name)) for name in os.listdir(folder))


def try_all(ds, folder):
    found = {}
    path = os.path.join(folder, "state.json")
    with iter(ds) as it:
        if second:
            try:
                it.set_state(json.load(open(path)))
                found["state"] = "accepted"
            except StateMismatch as error:
                found["state"], found["message"] = "refused", str(error)
        else:
            next(it)
            json.dump(it.get_state(), open(path, "w"))
    fresh = [int(x) for x in ds]
    where = {name: os.path.join(folder, name) for name in ("cache", "save", "column")}
    stream = ds.to_iter_dataset() if isinstance(ds, bushel.MapDataset) else ds
    before = {name: counted(path) if os.path.exists(path) else 0 for name, path in where.items()}
    values = [int(x) for x in stream.cache(where["cache"])]
    assert values == fresh, ("cache", values, fresh)
    found["cache"] = "refused" if counted(where["cache"]) > before["cache"] else "accepted"
    try:
        ds.save(where["save"], format="bagz", shards=1 if isinstance(ds, bushel.MapDataset) else None)
        found["save"] = "accepted"
    except ValueError:
        found["save"] = "refused"
    if isinstance(ds, bushel.MapDataset):
        try:
            values = [int(x) for x in ds.column(lambda x: int(x), cache_dir=where["column"]).values]
        except ValueError as error:
            if "every epoch" in str(error) or "missing" in str(error):
                return found  # it has no columns
            raise
        assert set(fresh) <= set(values), ("column", values, fresh)
        found["column"] = "refused" if counted(where["column"]) > before["column"] else "accepted"
    return found


for name in sorted(os.listdir(os.path.join(work, "kept"))):
    script = os.path.join(work, sys.argv[1], name, "train.py")
    sys.path.insert(0, os.path.dirname(script))
    modules = set(sys.modules)
    try:
        ds = runpy.run_path(script, run_name="__bushel_script__1" if second else "__main__")["ds"]
        results[name] = try_all(ds, os.path.join(work, "kept", name))
    except BaseException as error:
        import traceback
        results[name] = {"error": traceback.format_exc()}
    sys.path.pop(0)
    for module in set(sys.modules) - modules:
        if (getattr(sys.modules[module], "__file__", None) or "").startswith(work):
            del sys.modules[module]
print(json.dumps(results))
"""


@dataclasses.dataclass(frozen=True)
class Edit:
    """A program before and after an edit. `files` are modules beside it, by name: before and after."""

    before: str
    after: str
    files: tuple[tuple[str, str, str], ...] = ()


def write(work: pathlib.Path, edits: dict[str, Edit]) -> None:
    """Writes both versions of each program, in folders of their own."""
    for name, edit in edits.items():
        (work / "kept" / name).mkdir(parents=True)
        for which, text in (("first", edit.before), ("second", edit.after)):
            folder = work / which / name
            folder.mkdir(parents=True)
            folder.joinpath("train.py").write_text(HEAD + textwrap.dedent(text))
            for module, before, after in edit.files:
                path = folder / module
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(textwrap.dedent(before if which == "first" else after))


def run(work: pathlib.Path, which: str, hash_seed: int) -> dict[str, dict[str, str]]:
    """Runs all programs of one version: what each state, cache, saved folder and column of the first run became."""
    env = os.environ | {"PYTHONHASHSEED": str(hash_seed), "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUNNER, which, str(work)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=work, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_both(work: pathlib.Path, edits: dict[str, Edit]) -> dict[str, dict[str, str]]:
    """What became of what the first versions had kept, when the second versions ran.

    They run in another folder, with another hash seed, and as `bushel view` and other commands run a script.
    """
    write(work, edits)
    first = run(work, "first", 1)
    wrong = {name: found["error"] for name, found in first.items() if "error" in found}
    assert not wrong, "\n".join(f"{name}:\n{text}" for name, text in wrong.items())
    return run(work, "second", 2)
