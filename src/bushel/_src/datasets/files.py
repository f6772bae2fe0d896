"""Files that are read in order, as IterDatasets. The readers are in `sources/`.

The module of a format is imported when a dataset of that format is made, so that `import bushel` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from bushel._src.base import redact
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline
from bushel._src.graph.interleave import Interleave
from bushel._src.graph.records import Records
from bushel._src.graph.streams import StreamNode
from bushel._src.sources.protocol import SequentialSource

T = TypeVar("T")

_AT_A_TIME = 16  # files that are open at a time, as in Grain


@public("bushel.experimental")
class TFRecordIterDataset(IterPipeline[bytes]):
    """Records of TFRecord files, in order, as bytes. Files may be compressed with gzip or zlib.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time.
      verify: checks lengths and records against their checksums. By default it does if a package that computes
        checksums is installed; otherwise it does not, and warns.
      storage_options: options of the store that holds the files.

    >>> list(TFRecordIterDataset("nothing-*.tfrecord"))
    Traceback (most recent call last):
    FileNotFoundError: No file matches 'nothing-*.tfrecord'.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        verify: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ):
        from bushel._src.sources import crc
        from bushel._src.sources.tfrecord_stream import TFRecordStream

        checked = crc.decide_verify(verify)  # decided here, so that workers do the same as this process

        def source(name: str) -> SequentialSource:
            return TFRecordStream(name, checked, storage_options)

        super().__init__(_build_node(path, storage_options, "TFRecordIterDataset", source))


@public("bushel.experimental")
class ParquetIterDataset(IterPipeline[dict[str, Any]]):
    """Rows of Parquet files, in order, as dicts of NumPy values.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time.
      columns: the columns to read; all by default.
      storage_options: options of the store that holds the files.
      **read_kwargs: arguments of `pyarrow.parquet.ParquetFile`.

    >>> import os, tempfile, pyarrow, pyarrow.parquet
    >>> path = os.path.join(tempfile.mkdtemp(), "words.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"word": ["a", "b"], "count": [3, 1]}), path)
    >>> list(ParquetIterDataset(path, columns=["count"]))
    [{'count': np.int64(3)}, {'count': np.int64(1)}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **read_kwargs: Any,
    ):
        from bushel._src.sources.parquet import ParquetStream

        def source(name: str) -> SequentialSource:
            return ParquetStream(name, columns, storage_options, read_kwargs)

        super().__init__(_build_node(path, storage_options, "ParquetIterDataset", source))


@public("bushel.experimental")
class WebDatasetIterDataset(IterPipeline[dict[str, Any]]):
    """Samples of WebDataset shards (tar files), in order: dicts of bytes by ending, such as "jpg", and `__key__`.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time. Braces are
        expanded: "train-{000..009}.tar" is ten files, "{a,b}.tar" two.
      storage_options: options of the store that holds the files.

    >>> import io, os, tarfile, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "0.tar")
    >>> with tarfile.open(path, "w") as file:
    ...     for name, content in (("cat.txt", b"meow"), ("cat.cls", b"7")):
    ...         entry = tarfile.TarInfo(name)
    ...         entry.size = len(content)
    ...         file.addfile(entry, io.BytesIO(content))
    >>> list(WebDatasetIterDataset(path))
    [{'__key__': 'cat', 'txt': b'meow', 'cls': b'7'}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ):
        from bushel._src.sources.webdataset import WebDatasetStream, expand_braces

        def source(name: str) -> SequentialSource:
            return WebDatasetStream(name, storage_options)

        super().__init__(_build_node(expand_braces(path), storage_options, "WebDatasetIterDataset", source))


@public("bushel.experimental")
class IterableIterDataset(IterPipeline[T]):
    """`IterDataset.source(iterable)` as a class, like those of files. New programs need no second name: use `source`.

    >>> list(IterableIterDataset([1, 2]))
    [1, 2]
    """

    def __init__(self, iterable: Iterable[T] | Callable[[], Iterable[T]]):
        super().__init__(IterDataset.source(iterable)._node)


@in_states("no_files")
class _NoFiles(SequentialSource):
    """A pattern that matched no file. As in Grain, the error comes when an iterator is made."""

    def __init__(self, message: str):
        self._message = message

    def open(self) -> NoReturn:
        raise FileNotFoundError(self._message)

    def fingerprint(self) -> NoReturn:
        raise FileNotFoundError(self._message)


def _build_node(
    path: Any, options: Mapping[str, Any] | None, name: str, source: Callable[[str], SequentialSource]
) -> StreamNode:
    from bushel._src.sources import file_access

    try:
        paths = file_access.find_files(path, options)
    except FileNotFoundError as error:  # a pattern that matches nothing
        return Records(_NoFiles(str(error)), name)
    files = tuple(Records(source(entry), f"{name}({redact.base_name(entry)})") for entry in paths)
    return files[0] if len(files) == 1 else Interleave(files, _AT_A_TIME)
