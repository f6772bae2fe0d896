"""Runs every writer on a disk that becomes full: `fill_disk.py FOLDER LIMIT_BYTES`. Tells each error, and what is left.

With a limit no file may be larger than that; without, FOLDER is a disk that is too small.
"""

import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from bushel import sources
from bushel._src.trajectory.rlds.writer import write_rlds

FOLDER, LIMIT = Path(sys.argv[1]), int(sys.argv[2])
RECORDS = FOLDER.parent / "records.jsonl"


def convert(ending):
    return lambda: sources.convert(RECORDS, FOLDER / f"out.{ending}", verify=False)


def rlds(form):
    def write():
        steps = [
            {"steps": {"action": np.random.default_rng(number).random((3_000, 8), np.float32)}} for number in range(9)
        ]
        write_rlds({"train": steps}, name="mine", data_dir=FOLDER, file_format=form, shards=3)

    return write


def copy():
    import fsspec

    with fsspec.open("memory://x/a.jsonl", "wb") as file:
        file.write(b"x\n" * 500_000)
    sources.LineDataSource("memory://x/a.jsonl", storage_options={"cache_dir": str(FOLDER)})


WRITERS = {
    **{f"convert {ending}": convert(ending) for ending in ("tfrecord", "array_record", "bag", "bagz", "parquet")},
    "rlds tfrecord": rlds("tfrecord"),
    "rlds array_record": rlds("array_record"),
    "copy of a remote file": copy,
}


def limit(size_bytes):
    if LIMIT:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def main():
    RECORDS.write_bytes(b"".join(os.urandom(2_000).hex().encode() + b"\n" for _ in range(300)))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    outcomes = {}
    for name, write in WRITERS.items():
        for path in FOLDER.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        limit(LIMIT)
        try:
            write()
            error = "no error"
        except OSError as failure:
            error = str(failure)
        limit(resource.RLIM_INFINITY)
        left = [str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()]
        outcomes[name] = [error, sorted(left)]
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
