"""What the library does unasked: it opens no port, asks no server, and writes no pipeline to disk."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys

seen = []

def watch(event, arguments):
    if event.startswith(("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.", "http.")):
        seen.append([event, repr(arguments)])
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        if not str(arguments[0]).startswith("/dev/"):
            seen.append([event, repr(arguments[0])])

def guard(*worker):
    def refuse(event, arguments):
        before = len(seen)
        watch(event, arguments)
        if len(seen) > before:
            raise RuntimeError(f"a worker: {event} {arguments}")
    sys.addaudithook(refuse)

def double(x):
    return x * 2

if __name__ == "__main__":
    sys.addaudithook(watch)
    import bushel
    import bushel.prometheus
    ds = bushel.MapDataset.range(2_000).shuffle(seed=1).map(double).batch(10).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2), worker_init_fn=guard)) as it:
        next(it)
        state = json.dumps(it.get_state())
        assert len(list(it)) == 199
        it.report()
    loader = bushel.load(bushel.sources.RangeDataSource(0, 50, 1), num_epochs=1, worker_count=1)
    assert len(list(loader)) == 50
    print(json.dumps(seen))
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="without a memfd, shared memory is an unlinked file")
@pytest.mark.parametrize("guard_fails", [False, True])
def test_nothing_listens_is_sent_or_written(guard_fails, tmp_path):
    """With a program that does both, the guard fails."""
    path = tmp_path / "program.py"
    bad = "import socket; socket.socket().bind(('127.0.0.1', 0)); open(__file__ + '.new', 'w').close()"
    path.write_text(PROGRAM.replace("import bushel.prometheus", bad) if guard_fails else PROGRAM)
    environment = {name: value for name, value in os.environ.items() if "PYGRAIN" not in name}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=250, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert [event for event, _ in json.loads(ended.stdout)] == (["socket.bind", "open"] if guard_fails else [])
