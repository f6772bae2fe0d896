"""Reads damaged files, and tells what came of each. Ends by itself where a read hangs; see tests/sources/test_fuzz.py.

Takes the seconds after which a read counts as hanging, then lines "low high name" and answers each with
one line of JSON for every damage in [low, high), then "end".
"""

import contextlib
import faulthandler
import json
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from helpers.damaged_files import NEVER, RECORDS_TOO, SCHEMA, VALUES, WHOLE, Copy, equal

import bushel

HANGS_S = float(sys.argv[1])
MEMORY_BYTES = 2 << 30
LIBRARY = str(Path(bushel.__file__).parent)
OURS = (bushel.DamagedFile, ValueError, FileNotFoundError)


def structure(record: Any) -> Any:
    """What stays the same where values alone have changed."""
    if isinstance(record, dict):
        return {name: structure(value) for name, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [structure(value) for value in record]
    if isinstance(record, np.ndarray) and not record.dtype.hasobject:
        return record.dtype.kind, record.shape
    return type(record).__name__


def outcome(copy: Copy, path: Path, whole: Any) -> tuple[str, str]:
    """What came of reading: one of `SILENT`, "error", or what must not be, "bad"."""
    try:
        found = copy.form.read(copy.place)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)]
        names = (path.name, copy.place.name)
        if not isinstance(error, OURS) or isinstance(error, UnicodeError):
            return "bad", "".join(traceback.format_exception(error))
        if not frames[-1].filename.startswith(LIBRARY):
            return "bad", "".join(traceback.format_exception(error))
        if not copy.form.unnamed and not any(name in str(error) for name in names):
            return "bad", f"the file is not named: {text}"
        return "error", text[:300]
    if copy.form.alike is not None and copy.form.alike(found, whole):
        return NEVER, ""
    return difference(found, whole), repr(found)[:300]


def difference(found: Any, whole: Any) -> str:
    """How records differ from those that were written, as `SILENT` has it."""
    if equal(found, whole):
        return NEVER
    several = isinstance(found, list)
    if several and all(any(equal(record, one) for one in whole) for record in found):
        return WHOLE
    if structure(found) == structure(whole):
        return VALUES
    return SCHEMA if type(found) is type(whole) and len(found) == len(whole) else RECORDS_TOO


def limit_memory() -> None:
    """From here on, no more than two gigabytes of address space beyond what is in use."""
    if not sys.platform.startswith("linux"):
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def main() -> None:
    answers = sys.stdout
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            low, high, name = line.strip().split(" ", 2)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            copy = Copy.of(name, Path(folder) / "files")
            whole = copy.form.read(copy.place)
            assert equal(whole, copy.form.read(copy.place))
            limit_memory()
            for number in range(int(low), int(high)):
                faulthandler.dump_traceback_later(HANGS_S, exit=True)
                path = copy.damage(number)
                kind, detail = outcome(copy, path, whole)
                copy.repair(path)
                answers.write(json.dumps([number, kind, f"{path.name}: {detail}"]) + "\n")
                answers.flush()
            faulthandler.cancel_dump_traceback_later()
            answers.write('"end"\n')
            answers.flush()


if __name__ == "__main__":
    main()
