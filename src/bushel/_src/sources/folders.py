"""Folders on disk or in a store: files written so that a reader sees a whole file or none.

Objects in stores are uploaded, renamed and removed through obstore or an fsspec driver.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, ClassVar

import numpy as np

from bushel._src.base import checked_files, redact
from bushel._src.base.errors import add_note
from bushel._src.sources import file_access, fsspec_files, object_stores
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options, Path, is_url, normalize_path

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4  # so an upload holds about 32 MB at most
_MOST_PARTS = 9_000  # S3 accepts 10,000
_COPY_BYTES = 5 << 30
"""S3 copies larger objects only in parts, which obstore does not do."""
_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
"""Schemes whose fsspec drivers show only complete objects. With others, a file is written under another name first."""


def check_address(url: str) -> None:
    """Raise an error for addresses to which nothing can be written."""
    if url.startswith(("http://", "https://")):
        raise ValueError(
            f"{redact.show(url)} cannot be written: web servers accept no files. Name a local folder, or a store such "
            "as s3://bucket/folder or gs://bucket/folder."
        )


def upload(path: str, url: str, options: Options | None) -> None:
    """Copy a local file to a store. The file is read in parts, so a large file needs no more memory."""
    check_address(url)
    connected = object_stores.connect(url, options)
    if connected is None:
        _upload_by_driver(path, url, dict(options or {}))
        return
    store, key, settings = connected
    size = os.path.getsize(path)
    part = max(_PART_BYTES, -(-size // _MOST_PARTS))
    # The version of the object that an upload in parts replaces. It tells a new object from an old one if the last
    # answer of the upload is lost.
    before = _find_version(store, key, url, settings) if size > part else None
    with open(path, "rb") as file:  # closing it, also after Ctrl-C, ends an unfinished upload

        def put() -> None:
            file.seek(0)
            try:
                store.put(key, file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)
            except FileNotFoundError as error:
                if not object_stores.is_unclear_upload(error):
                    raise
                now = _find_version(store, key, url, settings)
                if now is None or now == before or now[0] != size:
                    raise

        object_stores.request_with_retries(put, url, settings, "written")


def _find_version(store: Any, key: str, url: str, settings: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the size, ETag and time of an object; None if it does not exist, or may not be read."""
    try:
        found = object_stores.request_with_retries(lambda: store.head(key), url, settings)
    except (FileNotFoundError, PermissionError):
        return None
    return found["size"], found.get("e_tag"), str(found.get("last_modified"))


def _upload_by_driver(path: str, url: str, settings: dict[str, Any]) -> None:
    system, target = fsspec_files.connect(url, settings)
    folder, _, name = target.rpartition("/")
    whole = url.partition("://")[0] in _WHOLE
    written = target if whole else f"{folder}/.{name[:40]}.{os.urandom(6).hex()}.writing"

    def put() -> None:
        if not whole and folder:
            with contextlib.suppress(NotImplementedError):
                system.makedirs(folder, exist_ok=True)
        system.put_file(path, written)

    fsspec_files.call_with_retries(put, url, settings, "written")
    if not whole:
        _move(system, written, target, url, settings)
    system.invalidate_cache()
    there = fsspec_files.call_with_retries(lambda: system.info(target), url, settings, "written").get("size")
    if there != os.path.getsize(path):
        raise OSError(
            f"{redact.show(url)} could not be written: its store has {there} of {os.path.getsize(path)} bytes."
        )


def rename(url: str, target: str, options: Options | None) -> None:
    """Rename an object of a store: the store copies it, then the old object is removed."""
    connected = object_stores.connect(url, options)
    if connected is None:
        settings = dict(options or {})
        system, old = fsspec_files.connect(url, settings)
        _, new = fsspec_files.connect(target, settings)
        if url.partition("://")[0] in _WHOLE:
            fsspec_files.call_with_retries(lambda: system.cp_file(old, new), target, settings, "written")
            fsspec_files.call_with_retries(lambda: system.rm_file(old), url, settings, "removed")
        else:
            _move(system, old, new, target, settings)
        system.invalidate_cache()
        return
    store, old, settings = connected
    _, new, _ = object_stores.connect(target, options) or connected
    file = object_stores.open_url(url, options)
    if file.size <= _COPY_BYTES:
        object_stores.request_with_retries(lambda: store.copy(old, new), target, settings, "written")
    else:
        _copy_through_disk(file, target, options)
    remove([url], options)


def _move(system: Any, old: str, new: str, url: str, settings: dict[str, Any]) -> None:
    """Rename a file by a driver. If an answer was lost, and the file has its new name, the rename has succeeded."""
    tried = False

    def move() -> None:
        nonlocal tried
        try:
            system.mv(old, new)
        except FileNotFoundError:
            system.invalidate_cache()
            if not tried or system.exists(old) or not system.exists(new):
                raise
        except Exception:
            tried = True
            raise

    fsspec_files.call_with_retries(move, url, settings, "written")


def _copy_through_disk(file: File, target: str, options: Options | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bushel-") as folder:
        path = os.path.join(folder, "copy")
        with open(path, "xb") as copy:
            for low in range(0, file.size, _PART_BYTES):
                copy.write(file.read(low, min(_PART_BYTES, file.size - low)))
        upload(path, target, options)


def remove(urls: list[str], options: Options | None) -> None:
    """Remove objects. Objects that do not exist are ignored."""
    for url in urls:
        connected = object_stores.connect(url, options)
        if connected is None:
            settings = dict(options or {})
            system, path = fsspec_files.connect(url, settings)
            with contextlib.suppress(FileNotFoundError):
                fsspec_files.call_with_retries(functools.partial(system.rm_file, path), url, settings, "removed")
            system.invalidate_cache()
        else:
            store, key, settings = connected
            with contextlib.suppress(FileNotFoundError):
                object_stores.request_with_retries(functools.partial(store.delete, key), url, settings, "removed")


class Folder(abc.ABC):
    """A folder that files are written to. Names of files are relative to it; a slash leads into a subfolder."""

    on_disk: ClassVar[bool]
    """Whether the folder is on this machine. Only such a folder can be renamed, and its files mapped and locked."""

    def __init__(self, address: str, options: redact.Options | None = None):
        self.address = address
        """The path or URL. It may contain secrets, so no message shows it."""
        self.options = options
        """The options of the store, without those of copies on disk: files that are being written are not copied."""

    @property
    def name(self) -> str:
        """The name of the folder in messages."""
        return redact.show(self.address)

    def path(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return join_path(self.address, name)

    def shown(self, name: str) -> str:
        """Return the name of a file of the folder in messages."""
        return redact.show(self.path(name))

    @abc.abstractmethod
    def new_file(self, name: str, *, draft: bool = False) -> contextlib.AbstractContextManager[str]:
        """Return a local path, to which the block writes a file.

        The file gets its name when the block ends without an error.

        `draft` says that `name` is temporary: the caller renames the file later, or removes it after an error.
        """

    @abc.abstractmethod
    def drafting(self) -> contextlib.AbstractContextManager[None]:
        """In the block, other processes may write drafts. At its end, what killed processes left is removed."""

    @abc.abstractmethod
    def replacing(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Return a file to write. It gets its name when the block ends without an error; otherwise it is removed."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self.replacing(name) as file:
            file.write(data)

    @abc.abstractmethod
    def filling(self, last: str, belongs: Callable[[str], bool]) -> contextlib.AbstractContextManager[Folder]:
        """Return the folder to write a new set of files into. After an error, all files of the set are removed.

        Args:
          last: the name of the file that is written last. If it exists already, FileExistsError is raised.
          belongs: says of a name whether the file belongs to such a set. Such files, left by a killed writer, are
            removed first.
        """

    @abc.abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file. Raise FileNotFoundError if it does not exist."""

    @abc.abstractmethod
    def read_array(self, name: str, *, verify: bool) -> np.ndarray:
        """Return the array of a sealed `.npy` file: mapped from disk, or read from a store."""

    @abc.abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether the file exists."""

    @abc.abstractmethod
    def names(self, under: str = "", *, deep: bool = False) -> list[str]:
        """Return the sorted names of the files in the folder or a subfolder; of deeper folders only if `deep`."""

    @abc.abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in this order. Files that do not exist are ignored."""

    @abc.abstractmethod
    def rename(self, name: str, target: str) -> None:
        """Rename a file. A file that already has the new name is replaced."""

    @abc.abstractmethod
    def sync(self, name: str) -> None:
        """Wait until the content of a file, or the names in the folder if `name` is empty, would survive a power cut.

        A store answers only when this is so. There this does nothing.
        """

    @abc.abstractmethod
    def locked(self, name: str, waiting: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """On disk, only one process at a time is in the block. A store has no locks, so there this does nothing.

        `waiting` is called if another process holds the lock.
        """


def open_folder(path: Path, options: Options | None = None) -> Folder:
    """Return a folder to write to.

    Args:
      path: a local folder, which is created when a file is written, or an address such as "s3://bucket/folder".
      options: options of the store: see `docs/sources/stores.md`.

    >>> place = open_folder("memory://shelf")
    >>> place.write("one.txt", b"1")
    >>> place.names(), place.read("one.txt")
    (['one.txt'], b'1')
    """
    text = normalize_path(path)
    if not is_url(text):
        return _LocalFolder(text)

    check_address(text)
    given = {key: value for key, value in (options or {}).items() if key not in ("cache_dir", "cache_bytes")}
    return _StoreFolder(text.rstrip("/"), redact.Options(given))


def open_parent(path: Path, options: Options | None = None) -> tuple[Folder, str]:
    """Return the folder of a file that will be written, and the file's name in it."""
    text = normalize_path(path)
    if is_url(text):
        above, _, name = text.rpartition("/")
    else:
        above, name = os.path.split(text)
    return open_folder(above, options), name


def join_path(folder: str, name: str) -> str:
    """Return the path of a file in a folder, which may be a URL."""
    return f"{folder.rstrip('/')}/{name}" if "://" in folder else os.path.join(folder, name)


class _LocalFolder(Folder):
    """A folder on disk."""

    on_disk = True

    @contextlib.contextmanager
    def new_file(self, name: str, *, draft: bool = False) -> Iterator[str]:
        self._make_parent(name)
        if draft:
            yield self.path(name)
        else:
            with checked_files.new_file(self.path(name)) as path:
                yield path

    @contextlib.contextmanager
    def drafting(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[IO[bytes]]:
        self._make_parent(name)
        with checked_files.replacing(self.path(name)) as file:
            yield file

    def _make_parent(self, name: str) -> None:
        os.makedirs(os.path.dirname(os.path.abspath(self.path(name))), exist_ok=True)

    @contextlib.contextmanager
    def filling(self, last: str, belongs: Callable[[str], bool]) -> Iterator[Folder]:
        del last, belongs  # the folder itself gets its name last
        if os.path.exists(self.address):
            raise FileExistsError(f"{self.address} exists already. Remove it, or write another version.")
        above = os.path.dirname(os.path.abspath(self.address))
        temporary = f"{self.address}.{os.getpid()}-{threading.get_ident()}.part"
        os.makedirs(temporary)
        try:
            yield _LocalFolder(temporary)
            os.rename(temporary, self.address)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(above)  # only if nothing else is in it
            raise

    def read(self, name: str) -> bytes:
        with open(self.path(name), "rb") as file:
            return file.read()

    def read_array(self, name: str, *, verify: bool) -> np.ndarray:
        return checked_files.read_array(self.path(name), verify=verify)

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def names(self, under: str = "", *, deep: bool = False) -> list[str]:
        found: list[str] = []
        for above, folders, files in os.walk(self.path(under) or "."):
            found += [os.path.relpath(os.path.join(above, name), self.address or ".") for name in files]
            if not deep:
                folders.clear()
        return sorted(found)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def rename(self, name: str, target: str) -> None:
        checked_files.sync(self.path(name))
        os.replace(self.path(name), self.path(target))

    def sync(self, name: str) -> None:
        if name:
            checked_files.sync(self.path(name))
            return
        descriptor = os.open(self.address or ".", os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some file systems cannot do this with folders
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def locked(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        self._make_parent(name)
        path = self.path(name)
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # this file system has no locks
            yield
            with contextlib.suppress(
                FileNotFoundError
            ):  # not after an error: another process may wait for the lock to try again
                os.unlink(path)


class _StoreFolder(Folder):
    """The objects of a store whose names begin with an address and a slash."""

    on_disk = False

    _drafts: str | None = None
    """A local folder for drafts of other processes."""

    @contextlib.contextmanager
    def drafting(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="bushel-", ignore_cleanup_errors=True) as self._drafts:
            yield
        self._drafts = None

    @contextlib.contextmanager
    def new_file(self, name: str, *, draft: bool = False) -> Iterator[str]:

        # On another machine, which has no such folder, the file is made where temporary files are.
        here = self._drafts if self._drafts is not None and os.path.isdir(self._drafts) else None
        above = tempfile.mkdtemp(prefix="bushel-", dir=here)
        path = os.path.join(above, os.path.basename(name)[-100:])
        try:
            yield path
            upload(path, self.path(name), self.options)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                add_note(
                    error,
                    f"bushel: before {self.shown(name)} is uploaded, it is written to {above}, and the disk is full. "
                    "Write smaller files (more shards), or set TMPDIR to a folder with more room.",
                )
            raise
        finally:
            shutil.rmtree(above, ignore_errors=True)

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[IO[bytes]]:
        with self.new_file(name) as path, open(path, "xb") as file:
            yield file
            file.flush()

    @contextlib.contextmanager
    def filling(self, last: str, belongs: Callable[[str], bool]) -> Iterator[Folder]:
        if self.exists(last):
            raise FileExistsError(f"{self.name} exists already. Remove it, or write another version.")
        self.remove(filter(belongs, self.names()))
        try:
            yield self
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
                self.remove(filter(belongs, self.names()))
            raise

    def read(self, name: str) -> bytes:
        file = file_access.open_exactly(self.path(name), self.options)
        return file.read(0, file.size)

    def read_array(self, name: str, *, verify: bool) -> np.ndarray:
        return checked_files.parse_array(self.read(name), self.shown(name), verify=verify)

    def exists(self, name: str) -> bool:
        try:
            file_access.open_exactly(self.path(name), self.options)
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def names(self, under: str = "", *, deep: bool = False) -> list[str]:
        from bushel._src.sources import object_stores

        begin = f"{self.address}/"
        try:
            found = object_stores.list_urls(f"{self.path(under)}/" if under else begin, self.options, deep=deep)
        except FileNotFoundError:  # the bucket or folder does not exist
            return []
        return sorted(url.removeprefix(begin) for url in found)

    def remove(self, names: Iterable[str]) -> None:

        remove([self.path(name) for name in names], self.options)

    def rename(self, name: str, target: str) -> None:

        rename(self.path(name), self.path(target), self.options)

    def sync(self, name: str) -> None:
        pass

    @contextlib.contextmanager
    def locked(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        yield


def is_web(path: str) -> bool:
    """Return whether a URL is that of a web server, which cannot list its files."""
    return path.lower().startswith(("http://", "https://"))


def explain_web_folder(path: str) -> FileNotFoundError:
    """Return the error to raise for a web address that is not a file, nor a folder that can be read without listing
    it.
    """
    return FileNotFoundError(
        f"{redact.show(path)} is not a file of a known format, and a web server cannot list the files of a folder. "
        "Behind http:// and https:// Bushel reads single files, LeRobot data sets, RLDS and TFDS data sets by the "
        "folder of their version (such as .../1.0.0), and what ds.save wrote. Copy any other folder to this machine, "
        "or to a store such as s3://bucket/folder."
    )


def file_exists(path: str, options: Options | None = None) -> bool:
    """Return whether there is a file at a path or URL."""
    try:
        file_access.open_file(path, options)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
    return True


def is_folder(path: str, options: Options | None) -> bool:
    """Return whether there is a folder at a path; at a URL, one with files."""
    return bool(Listing(path, options).names(2)) if is_url(path) else os.path.isdir(path)


class Listing:
    """The names of files in a folder, on disk, in a store, or behind a web server, which cannot list them.

    Attributes:
      place: the path or URL of the folder.
      refusal: the last error of a store that has refused to answer. A store that does not allow listing refuses to say
        that a file is missing.
    """

    def __init__(self, place: str, options: Options | None):
        self.place, self.options = place, options
        self.refusal: PermissionError | None = None
        self._names: dict[int, list[str]] = {}

    def has(self, name: str) -> bool:
        """Return whether the folder has a file of this name."""
        try:
            return file_exists(join_path(self.place, name), self.options)
        except PermissionError as error:
            self.refusal = error
            return False

    def names(self, depth: int = 0) -> list[str]:
        """Return the sorted names of the files, and of those in folders up to a depth, without hidden ones."""
        if depth not in self._names:
            try:
                found = self._list_store(depth) if is_url(self.place) else list(_list_local(self.place, depth))
            except PermissionError as error:
                found, self.refusal = [], error
            self._names[depth] = sorted(name for name in found if not name.rpartition("/")[2].startswith("."))
        return self._names[depth]

    def _list_store(self, depth: int) -> list[str]:
        if is_web(self.place):
            return []
        found = open_folder(self.place, self.options).names(deep=depth > 0)
        return [name for name in found if name.count("/") <= depth]

    def find(self, *endings: str) -> list[str]:
        """Return the files with these endings, in the folder, or else in its folders, which are splits."""
        here = [name for name in self.names() if name.lower().endswith(endings)]
        return here or [name for name in self.names(1) if name.lower().endswith(endings)]


def _list_local(place: str, depth: int, above: str = "") -> Iterator[str]:
    try:
        entries = list(os.scandir(place or "."))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.is_dir():
            yield above + entry.name
        elif depth:
            yield from _list_local(entry.path, depth - 1, f"{above}{entry.name}/")
