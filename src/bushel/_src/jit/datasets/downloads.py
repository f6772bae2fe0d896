"""Files of data sets in a cache folder: find, download, check and unpack them. Their formats are elsewhere."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import shutil
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bushel._src.base import checked_files
from bushel._src.base.shown_text import Progress

TIMEOUT_S = 30


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded: its name, its URL, and its MD5 if that is published."""

    name: str
    url: str
    md5: str | None = None


def get_cache_folder(name: str, cache_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a data set: `cache_dir`, or by default a folder in the user's cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "bushel" / name


def fetch(remote: Remote, folder: Path, also_in: Sequence[Path] = ()) -> Path:
    """Return the path of a file, compressed or not. Download it into `folder` if it is in none of the folders."""
    for place in (folder, *also_in):
        for name in (remote.name, remote.name.removesuffix(".gz")):
            if (place / name).is_file():
                return place / name
    try:
        download(remote, folder)
    except (OSError, _NotDownloaded) as error:
        reason = str(error) if isinstance(error, _NotDownloaded) else f"The error was: {error}."
        raise FileNotFoundError(
            f"{remote.name} is not in {folder}, and {remote.url} could not be downloaded. {reason} "
            "Download the file on a machine with a network connection and put it into that folder."
        ) from error
    return folder / remote.name


class _NotDownloaded(Exception):
    """The network or the server has failed, or what came is not the file. It is no OSError: the disk has not failed."""


def download(remote: Remote, folder: Path) -> None:
    """Download a file into a folder. The file appears there complete and with the right checksum, or not at all."""
    with open_for_writing(folder / remote.name) as file:
        digest = hashlib.md5(usedforsecurity=False)
        for block in _receive(remote):
            digest.update(block)
            file.write(block)
        if remote.md5 is not None and digest.hexdigest() != remote.md5:
            raise _NotDownloaded(f"Its MD5 is {digest.hexdigest()}, but should be {remote.md5}.")


def _receive(remote: Remote) -> Iterator[bytes]:
    """Yield the content of a file, block by block. Raise _NotDownloaded."""
    received = 0
    try:
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT_S) as answer:
            expected_bytes = answer.headers.get("Content-Length")
            length = int(expected_bytes) if expected_bytes is not None and expected_bytes.isdecimal() else None
            with Progress(f"downloading {remote.name}", length, unit="B") as bar:
                while block := answer.read(1 << 20):
                    received += len(block)
                    yield block
                    bar.show(received)
    except (OSError, http.client.HTTPException, ValueError) as error:  # urllib raises a ValueError for a malformed URL
        raise _NotDownloaded(f"The error was: {error}.") from error
    if length is not None and received != length:
        raise _NotDownloaded(f"The connection ended after {received} of {length} bytes.")


@contextlib.contextmanager
def open_for_writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name only when the block ends without an error. Create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with checked_files.replacing(path) as file:
        yield file


def open_for_reading(path: Path) -> IO[bytes]:
    """Open a file, and decompress it while it is read if its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def unpack(path: Path, folder: Path) -> Path:
    """Return the path of the decompressed file, so that it can be mapped into memory. Write it if needed."""
    if path.suffix != ".gz":
        return path
    target = folder / path.name.removesuffix(".gz")
    if not target.is_file():
        with open_for_reading(path) as packed, open_for_writing(target) as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    return target
