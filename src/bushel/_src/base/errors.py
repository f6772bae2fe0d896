"""The errors that Bushel raises itself, and how a user's error gets its context.

A user's exception keeps its type: what failed and where is added as a note (PEP 678).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from bushel._src.base.grain_names import config
from bushel._src.base.public import public


@public("bushel")
class BushelError(Exception):
    """The base of all errors of Bushel's own. Each is one of Python's errors, too.

    A wrong argument raises Python's own TypeError or ValueError.

    >>> import bushel
    >>> issubclass(bushel.StateMismatch, bushel.BushelError), issubclass(bushel.StateMismatch, ValueError)
    (True, True)
    """


@public("bushel")
class BushelWarning(UserWarning):
    """The category of all warnings of Bushel.

    >>> import warnings
    >>> import bushel
    >>> warnings.simplefilter("error", bushel.BushelWarning)  # each warning stops the program
    >>> warnings.simplefilter("default", bushel.BushelWarning)
    """


@public("bushel")
class BushelDeprecationWarning(BushelWarning, DeprecationWarning):
    """A call that will go in a later release, here or in Grain. The message names what to write instead."""


@public("bushel")
class StateMismatch(BushelError, ValueError):
    """A state that belongs to another pipeline, or a value that is not a state.

    If one place in the state is wrong, `path` leads there: keys of dicts and numbers in lists.

    >>> from bushel import MapDataset
    >>> state = iter(MapDataset.range(10).seed(0).shuffle()).get_state()
    >>> iter(MapDataset.range(10).seed(1).shuffle()).set_state(state)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    bushel.StateMismatch: This state belongs to another pipeline. ...
    """

    def __init__(self, message: str, *path: str | int):
        super().__init__(message)
        self.path = path

    def __str__(self) -> str:
        place = "".join(f"[{key!r}]" for key in self.path)
        return f"{self.args[0]} The place in the state: {place}." if place else self.args[0]


@public("bushel")
class PositionOutOfRange(StateMismatch, IndexError):
    """A position outside of the data. It is an IndexError too, as in Grain."""


class inside:
    """A `with` block that reads a part of a state. A StateMismatch raised inside gets the path to that part.

    >>> with inside("parents", 1):
    ...     raise StateMismatch("No such element.", "next_index")
    Traceback (most recent call last):
    bushel.StateMismatch: No such element. The place in the state: ['parents'][1]['next_index'].
    """

    def __init__(self, *path: str | int):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, StateMismatch):
            error.path = (*self._path, *error.path)


@public("bushel")
class StoppedByUser(BushelError, RuntimeError):
    """A user's function raised StopIteration. Passed on, it would have ended the iteration without an error."""


@public("bushel")
class WorkerDied(BushelError, RuntimeError):
    """Worker processes died again and again while they computed the same elements, so Bushel gives these elements up.

    If a worker dies once, another one computes its elements again, and nothing is lost. The message names the elements
    and the records that they are made of. To continue without such elements, let Bushel skip them:

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(10).to_iter_dataset().with_options(on_error="skip", skip_limit=100)
    """

    at: tuple[int, int] | None = None
    """The positions [low, high) of these elements, where they are known."""
    counted: int = 0
    """How many of the operations that count elements had counted these elements."""


@public("bushel")
class WorkerTimeout(WorkerDied, TimeoutError):
    """An element took longer than `timeout_s`, twice. Its worker was killed each time. The message names the element.

    >>> from bushel import MapDataset, MultiprocessingOptions
    >>> options = MultiprocessingOptions(num_workers=2, timeout_s=30)
    >>> ds = MapDataset.range(10).to_iter_dataset().mp_prefetch(options)
    """


@public("bushel")
class UnknownFormat(BushelError, ValueError):
    """The name and the first bytes of a file do not tell its format."""


@public("bushel")
class OtherFile(BushelError, ValueError):
    """An HDF5 file takes values from another file, which is read only if you allow it."""


@public("bushel")
class PipelineNotSent(BushelError, TypeError):
    """A part of the pipeline cannot be pickled, so the pipeline cannot be sent to worker processes.

    Functions and classes that hold an open file, a lock or a connection cannot be pickled. Open such things inside the
    function, or leave them out in `__getstate__`: see "Write your own source" in the documents.

    >>> import threading
    >>> from bushel import MapDataset, MultiprocessingOptions
    >>> lock = threading.Lock()
    >>> ds = MapDataset.range(4).map(lambda x: (lock.locked(), x)).to_iter_dataset()
    >>> next(iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1))))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    bushel.PipelineNotSent: ...
    """


@public("bushel")
class SavedByAnotherPipeline(BushelError, FileExistsError, ValueError):
    """A folder holds elements that `save` has written for another pipeline, or from other data."""


@public("bushel")
class DamagedFile(BushelError, ValueError):
    """A file that is damaged: cut short, changed, half written, or of another format."""


@public("bushel")
class TooLarge(DamagedFile):
    """A record, image or array that would take more memory than the limits of `bushel.sources` allow."""


class RowFailed(Exception):
    """Row `row` of a block could not be computed because of `error`. Users never see this exception.

    Nodes that change positions (batch, mix, flat_map) translate `row`. The caller that asked for the block raises
    `error` itself.
    """

    def __init__(self, row: int, error: Exception):
        super().__init__(row, error)
        self.row = row
        self.error = error


@public("bushel")
class TooManySkipped(BushelError, RuntimeError):
    """More elements failed than `skip_limit` allows.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.source(["1", "x", "y"]).map(int).to_iter_dataset()
    >>> list(ds.with_options(on_error="skip", skip_limit=2))
    [1]
    >>> list(ds.with_options(on_error="skip", skip_limit=1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    bushel.TooManySkipped: ...
    """


def describe_error(error: BaseException) -> str:
    """Return an error as text: its type, its message and its notes."""
    try:
        said = str(error)
    except Exception:  # the user's own `__str__` failed
        said = "(its `__str__` failed)"
    return "\n".join([f"{type(error).__name__}: {said}", *getattr(error, "__notes__", [])])


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the name of the file to errors of writing: the system reports a full disk without a name.

    The package array_record raises RuntimeError; that becomes an OSError too.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = getattr(error, "errno", None) or errno.EIO
        reason = getattr(error, "strerror", None) or f"{error} (is the disk full?)".partition("\n")[0]
        raise OSError(code, f"writing {os.fspath(path)} failed: {reason}") from error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, also to one that refuses new attributes, such as a frozen dataclass."""
    try:
        error.add_note(note)
    except Exception:
        notes = vars(error).setdefault("__notes__", [])
        if isinstance(notes, list):
            notes.append(note)


def locate_error(error: Exception, where: str) -> Exception:
    """Return the error to raise for `error`, with a note that says `where` it happened."""
    if isinstance(error, StopIteration):
        stopped = StoppedByUser(
            "A function of the pipeline raised StopIteration, which would end the iteration early without an error. "
            "Raise another exception, or use `filter` to drop elements."
        )
        stopped.__cause__ = error
        error = stopped
    add_note(error, where)
    return error


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARY_FOLDERS = os.path.join(_PACKAGE, ""), os.path.join(os.path.dirname(os.__file__), "concurrent", "futures", "")
"""Folders whose code is left out of the traceback when an element fails."""


def is_library_file(filename: str) -> bool:
    """Return whether a file is Bushel's own code, also made at run time, or a library's that Bushel runs functions
    with.
    """
    return filename.startswith((*_LIBRARY_FOLDERS, "<bushel: "))


def remove_library_frames(error: Exception) -> Exception:
    """Return the error with a traceback that begins with the user's own code.

    An unexpected error inside Bushel keeps its whole traceback. So do all errors after
    `config.update("py_traceback_filtering", "off")`.
    """
    trace = error.__traceback__
    while trace is not None and is_library_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    expected = hasattr(error, "__notes__") or isinstance(error, (BushelError, RowFailed))
    if config.py_traceback_filtering == "off" or (trace is None and not expected):
        return error
    return error.with_traceback(trace)
