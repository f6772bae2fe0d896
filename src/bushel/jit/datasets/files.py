"""Files of data sets in a cache folder: found, downloaded whole and checked, unpacked. What is in them is elsewhere."""

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

from bushel.base import sealed

TIMEOUT_S = 30


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded: its name, where from, and its MD5 if that is public."""

    name: str
    url: str
    md5: str | None = None


def cache_folder(name: str, cache_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of a data set: `cache_dir`, or one of its own below the user's cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "bushel" / name


def fetched(remote: Remote, folder: Path, also_in: Sequence[Path] = ()) -> Path:
    """The path of a file: as it is in the folder, packed or unpacked, or downloaded there."""
    for place in (folder, *also_in):
        for name in (remote.name, remote.name.removesuffix(".gz")):
            if (place / name).is_file():
                return place / name
    try:
        download(remote, folder)
    except (OSError, http.client.HTTPException, ValueError) as error:  # a ValueError is an address that is none
        raise FileNotFoundError(
            f"{remote.name} is not in {folder}, and {remote.url} could not be downloaded ({error}). "
            f"Get the file where there is a network and put it into that folder."
        ) from error
    return folder / remote.name


def download(remote: Remote, folder: Path) -> None:
    """Downloads a file into a folder. It appears there whole and with the right checksum, or not at all."""
    with written(folder / remote.name) as file:
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT_S) as answer:
            while block := answer.read(1 << 20):
                digest.update(block)
                file.write(block)
            promised = answer.headers.get("Content-Length")
        if promised is not None and file.tell() != int(promised):
            raise OSError(f"the connection ended after {file.tell()} of {promised} bytes")
        if remote.md5 is not None and digest.hexdigest() != remote.md5:
            raise OSError(f"its MD5 is {digest.hexdigest()}, but should be {remote.md5}")


@contextlib.contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its place only when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sealed.replacing(path) as file:
        yield file


def opened(path: Path) -> IO[bytes]:
    """A file to read, unpacked on the way if its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]


def unpacked(path: Path, folder: Path) -> Path:
    """The unpacked form of a file, written to `folder` if need be: for mapping into memory."""
    if path.suffix != ".gz":
        return path
    target = folder / path.name.removesuffix(".gz")
    if not target.is_file():
        with opened(path) as packed, written(target) as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    return target
