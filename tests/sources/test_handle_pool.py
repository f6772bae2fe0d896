"""Handles that one thread at a time may use: no thread keeps them, so that no thread's end destroys them."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bushel._src.sources.local_files import HandlePool

LIBRARY = Path(__file__).parent.parent.parent / "src" / "bushel"

TOKENIZER = """
import io, fsspec, pyarrow as pa, pyarrow.parquet as pq
from tokenizers import Tokenizer, models, trainers
from bushel.sources import ParquetDataSource

content = io.BytesIO()
pq.write_table(pa.table({"text": [f"row {number}" for number in range(20)]}), content, row_group_size=4)
for name in ("a", "b"):
    with fsspec.open(f"memory://x/{name}.parquet", "wb") as file:
        file.write(content.getvalue())
source = ParquetDataSource("memory://x/*.parquet", cache_bytes=1)
tokenizer = Tokenizer(models.BPE())
texts = (source[number]["text"] for number in range(len(source)))
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=50, show_progress=False))
print(len(source), tokenizer.get_vocab_size() > 0)
"""


def test_a_tokenizer_reads_remote_parquet_from_its_own_threads():
    """Its threads are not Python's: one that ended with an open file in its `threading.local` hung for ever."""
    done = subprocess.run([sys.executable, "-c", TOKENIZER], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, "40 True\n"), done.stderr


def thread_locals(root: Path) -> list[str]:
    """Where `threading.local` is used, as "file:line"."""
    found = []
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Attribute) and node.attr == "local" and ast.unparse(node.value) == "threading"
            modules = ("threading", "_thread", "_threading_local")
            imported = isinstance(node, ast.ImportFrom) and node.module in modules
            if named or (imported and any(alias.name in ("local", "_local") for alias in node.names)):
                found.append(f"{file.relative_to(root)}:{node.lineno}")
    return found


def test_nothing_lives_in_a_threading_local():
    assert thread_locals(LIBRARY) == []


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nfiles = threading.local()",
        "import threading\nclass Files(threading.local): pass",
        "from threading import Lock, local",
        "def f():\n    from threading import local as here",
    ],
)
def test_a_threading_local_is_found(code, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.py").write_text(code)
    assert len(thread_locals(tmp_path)) == 1


def test_a_handle_is_used_by_one_thread_at_a_time_and_again():
    pool = HandlePool(threading.Lock, limit=4)
    made, busy = set(), []

    def use():
        for _ in range(300):
            with pool.lend() as handle:
                if not handle.acquire(blocking=False):
                    busy.append(handle)
                made.add(handle)
                handle.release()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not busy
    assert len(made) < 300


def test_a_handle_is_not_kept_after_an_error_nor_beyond_the_limit():
    pool = HandlePool(object, limit=1)
    with pytest.raises(ValueError, match="read"), pool.lend() as failed:
        raise ValueError("read")
    with pool.lend() as first, pool.lend() as second:
        pass
    assert first is not failed and second is not failed
    assert pool.take() is second  # given back first, and `first` found no room
    assert pool.take() is not first
