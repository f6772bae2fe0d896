"""Converts to a local folder again and again, killed at each call that touches a file, and prints what readers see.

`python killed_conversion.py FOLDER ENDING MODE STEP` prints one JSON line for each kill. This process only forks: a
library with threads of its own is used in children alone.
"""

import builtins
import glob
import json
import os
import shutil
import signal
import sys
import traceback

from bushel import sources
from bushel.sources import convert

COUNT = 6
CALLS = ["replace", "rename", "unlink", "remove", "fsync", "open", "rmdir", "mkdir", "makedirs"]
MODES = {"fresh": (0, 3), "overwrite": (3, 3), "fewer": (4, 3), "one": (1, 1), "fresh one": (0, 1)}
"""For each mode, how many shards there are before, and how many are written."""


def in_child(work):
    """Runs a function in a child. Returns its result, or minus the signal that has killed the child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ours)
            found = work()
        except BaseException:
            found = traceback.format_exc()
        os.write(theirs, json.dumps(found).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else json.loads(content)


def convert_counted(folder, ending, shards, overwrite, deadly):
    """Converts, and counts the calls that touch a file. Before call number `deadly` the process kills itself."""
    calls = 0

    def count(call):
        def counted(*arguments, **options):
            nonlocal calls
            if calls == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return call(*arguments, **options)

        return counted

    for name in CALLS:
        setattr(os, name, count(getattr(os, name)))
    builtins.open = count(builtins.open)
    try:
        convert("new.txt", f"{folder}/c.{ending}", shards=shards, workers=1, overwrite=overwrite, progress=False)
    except FileExistsError:
        return "exists"
    return calls


def read(opened):
    """The records of a source, as texts; the name of the error if it cannot be opened."""
    try:
        rows = list(opened())
    except (OSError, ValueError) as error:
        return type(error).__name__
    return [(row["record"] if isinstance(row, dict) else row).decode() for row in rows]


def look(folder, ending, shards):
    """What each kind of reader sees."""
    pattern = f"{folder}/c.{ending}" if shards == 1 else f"{folder}/c-*.{ending}"
    names = [f"{folder}/c-{number:05d}-of-{shards:05d}.{ending}" for number in range(shards)]
    kind = type(sources.open(os.path.abspath(f"sample.{ending}")))
    return {
        "pattern": read(lambda: sources.open(pattern)),
        "everything": read(lambda: kind(f"{folder}/c*")),
        "names": read(lambda: kind(pattern if shards == 1 else names)),
        "one by one": [read(lambda name=name: kind(name)) for name in names],
        "foreign": [read(lambda name=name: kind(name)) for name in copy_away(pattern)],
        "files": sorted(os.listdir(folder)),
    }


def copy_away(pattern):
    """The files under final names, in a folder without a journal: what a program sees that does not know journals."""
    shutil.rmtree("foreign", ignore_errors=True)
    os.mkdir("foreign")
    return [shutil.copy(name, "foreign") for name in sorted(glob.glob(pattern))]


def main(folder, ending, mode, step):
    os.chdir(folder)
    before, after = MODES[mode]
    for name in ("old", "new"):
        with open(f"{name}.txt", "w") as file:
            file.write("\n".join(f"{name} {number}" for number in range(COUNT)))
    in_child(lambda: convert("new.txt", f"sample.{ending}", progress=False).files)

    def prepare():
        shutil.rmtree("target", ignore_errors=True)
        os.mkdir("target")
        if before:
            convert("old.txt", f"target/c.{ending}", shards=before, workers=1, progress=False)

    overwrite = before > 0
    in_child(prepare)
    calls = in_child(lambda: convert_counted("target", ending, after, overwrite, None))
    assert isinstance(calls, int) and calls > 0, calls
    for deadly in range(0, calls, int(step)):
        in_child(prepare)
        ended = in_child(lambda deadly=deadly: convert_counted("target", ending, after, overwrite, deadly))
        seen = in_child(lambda: look("target", ending, after))
        again = in_child(lambda: convert_counted("target", ending, after, overwrite, None))
        finally_ = in_child(lambda: look("target", ending, after))
        line = {"call": deadly, "of": calls, "ended": ended, "seen": seen, "again": again, "finally": finally_}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
