"""What the page looks at: the steps of a pipeline, and elements after any step; the arguments of requests.

Opening a session reads nothing. Lengths, shapes and elements are found when the page asks for them. Elements of a
stream are found by seeking where the stream can, else by reading forward from a saved state.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from bushel._src.base import trees
from bushel._src.base.errors import describe_error
from bushel._src.base.options import DatasetOptions
from bushel._src.datasets.base_dataset import wrap
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph.node import MapNode, Node, replace_parents
from bushel._src.graph.origins import ElementOrigin
from bushel._src.graph.stream_ops import BatchStream
from bushel._src.graph.streams import Ahead, Pulled, StreamNode, ToDevice, WithOptions
from bushel._src.graph.user_datasets import CustomMap
from bushel._src.view.attachment import open_unlisted


class BadQuery(ValueError):
    """A request whose arguments are missing or make no sense."""


class Query:
    """The arguments of a request.

    >>> Query({"index": "12"}).integer("index")
    12
    """

    def __init__(self, arguments: Mapping[str, str]):
        self._arguments = arguments

    def text(self, name: str, default: str | None = None) -> str:
        """Return an argument as it is. It must be there if it has no default."""
        value = self._arguments.get(name, default)
        if value is None:
            raise BadQuery(f"The argument {name} is missing.")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int | None = None, high: int | None = None) -> int:
        """Return a whole number, from `low` to `high`."""
        text = self.text(name, None if default is None else str(default))
        try:
            if len(text) > 30:
                raise ValueError
            number = int(text)
        except ValueError:
            raise BadQuery(f"{name} must be a whole number, got {text[:40]!r}.") from None
        if (low is not None and number < low) or (high is not None and number > high):
            allowed = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            raise BadQuery(f"{name} must be {allowed}, got {number}.")
        return number


Routes = dict[str, Callable[[Query], Any]]
"""For each name, the function that answers /api/PANEL/NAME with JSON data."""


BUDGET_S = 2.0
"""How long one request may read forward. The page then shows how far it is, and asks again."""

_KEPT_ELEMENTS = 16
_KEPT_BYTES = 256 << 20
_KEPT_STATES = 256


@dataclasses.dataclass(frozen=True)
class ReadProgress:
    """How far a stream was read on the way to an element."""

    at: int
    wanted: int


def without_workers(node: Node) -> Any:
    """Return the same stream computed in this process: without worker processes, threads that read ahead, and
    devices.
    """
    while isinstance(node, (Ahead, Pulled, ToDevice)):
        node = node.parent
    return replace_parents(node, without_workers) if isinstance(node, StreamNode) else node


def can_seek(node: StreamNode, iterator: PipelineIterator[Any]) -> bool:
    """Return whether an iterator goes to any element at once.

    Where a filter drops elements, the index of an iterator counts the dropped ones, too. The length is then not known.
    """
    if node.length is None:
        return False
    try:
        iterator._set_next_index(iterator._get_next_index())
    except Exception:  # the iterator of a user's own dataset may raise anything
        return False
    return True


def _measure(element: Any) -> int:
    return sum(getattr(leaf, "nbytes", 64) for leaf in trees.leaves(element))


def _makes_batches(node: Node) -> bool:
    return isinstance(node, BatchStream) or any(_makes_batches(parent) for parent in node.parents)


class StreamReader:
    """Reads elements of a stream by position. Several threads may use it.

    Args:
      node: the stream.
      state: the position that counts as the start, for example that of a checkpoint.
      skips: leaves out elements that fail. Otherwise a stream that cannot seek ends at the first of them.
    """

    def __init__(self, node: StreamNode, state: Any = None, *, skips: bool = False):
        stream = without_workers(node)
        if skips:
            stream = WithOptions(stream, DatasetOptions(on_error="skip"))
        self._stream, self._start = stream, state
        self._iterator = self._open()
        self._lock = threading.RLock()
        self._length = node.length
        self._batches = _makes_batches(stream)
        self.is_seekable = can_seek(node, self._iterator)
        self._position = self._iterator._get_next_index() if self.is_seekable else 0
        self._end: int | None = None
        self._elements: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._states: dict[int, Any] = {}

    def _open(self) -> PipelineIterator[Any]:
        iterator = open_unlisted(self._stream)
        if self._start is not None:
            iterator.set_state(self._start)
        return iterator

    def read(self, index: int, reading: Any) -> Any:
        """Return the element at `index` as a `ElementReading`. Raise the error of an element that fails."""
        # A single element may take for ever, for example behind a filter that drops all. Another request does not wait.
        if not self._lock.acquire(timeout=BUDGET_S):
            return reading(index, progress=ReadProgress(self._position, index))
        try:
            if index in self._elements:
                return reading(index, self._elements[index])
            if self.is_seekable:
                found = self._read_by_seeking(index, reading)
                if found is not None:
                    return found
            return self._read_forward(index, reading)
        finally:
            self._lock.release()

    def _read_by_seeking(self, index: int, reading: Any) -> Any:
        """Go to the element at once. Return None if it turns out that the stream has to be read from its start."""
        if self._length is not None and index >= self._length:
            return reading(index, ended=self._length)
        self._seek(index)
        try:
            element = next(self._iterator)
        except StopIteration:
            self._position = -1
            return reading(index, missing=True)  # a function has returned None here, and for all after it
        try:
            after = self._iterator._get_next_index()
        except Exception:
            after = None
        if after is None or (after != index + 1 and self._batches):
            # A function has returned None, so that the batch took more elements than planned. Then only reading tells
            # which elements the batches before it have.
            self.is_seekable, self._position = False, 0
            self._elements.clear()
            self._iterator.close()
            self._iterator = self._open()
            return None
        self._keep(after - 1, element)
        self._position = after
        return reading(index, element) if after == index + 1 else reading(index, missing=True)

    def _read_forward(self, index: int, reading: Any) -> Any:
        """Read from the last known position before the element, for some time."""
        if self._end is not None and index >= self._end:
            return reading(index, ended=self._end)
        self._go_back_to(index)
        deadline = time.monotonic() + BUDGET_S
        while True:
            position = self._position
            try:
                element = self._next()
            except StopIteration:
                self._end = position
                return reading(index, ended=position)
            if position == index:
                return reading(index, element)
            if time.monotonic() > deadline:
                return reading(index, progress=ReadProgress(self._position, index))

    def origin(self, index: int) -> ElementOrigin:
        """Return the source records of the element at `index`."""
        with self._lock:
            if not self.is_seekable:
                raise ValueError(
                    "The elements of this stream depend on what was read before them, so Bushel does not know their "
                    "records without reading. Look at an earlier step, or use `pack` and `where` on the MapDataset."
                )
            if self._length is None or index < self._length:
                self._seek(index)
                for origin in self._iterator.origins(1):
                    return origin
            raise ValueError(f"The stream ends before element {index}.")

    def _next(self) -> Any:
        """Return the next element, with the state before it kept."""
        if self._position not in self._states:
            with contextlib.suppress(Exception):  # the iterator of a user's own dataset may have no states
                self._states[self._position] = self._iterator.get_state()
            if len(self._states) > _KEPT_STATES:  # keep the first, and every second of the others
                kept = sorted(self._states)[::2]
                self._states = {position: self._states[position] for position in kept}
        element = next(self._iterator)
        self._keep(self._position, element)
        self._position += 1
        return element

    def _keep(self, position: int, element: Any) -> None:
        """Keep an element, and forget the oldest ones if they are many or large."""
        self._elements[position] = element
        sizes = [_measure(kept) for kept in self._elements.values()]
        while len(sizes) > 1 and (len(sizes) > _KEPT_ELEMENTS or sum(sizes) > _KEPT_BYTES):
            self._elements.popitem(last=False)
            sizes.pop(0)

    def _seek(self, index: int) -> None:
        if self._position != index:
            self._position = -1  # if seeking fails, the position is not known
            self._iterator._set_next_index(index)
            self._position = index

    def _go_back_to(self, index: int) -> None:
        """Move the iterator to the last position before `index` that has a state, unless it is there already."""
        known = [position for position in self._states if position <= index]
        nearest = max(known, default=0)
        if index < self._position or nearest > self._position:
            if known:
                self._iterator.set_state(self._states[nearest])
            else:
                self._iterator.close()
                self._iterator = self._open()
            self._position = nearest

    def close(self) -> None:
        """Close the iterator."""
        self._iterator.close()


ENDLESS = 1 << 53
"""What is longer has no end: batches of an endless dataset are fewer than INFINITE. JavaScript counts up to here."""


SPEC = 4_000
"""How many characters of the shapes of an element are shown."""
KEPT = 2
"""How many elements of map datasets are kept in memory."""


@dataclasses.dataclass(frozen=True)
class ElementReading:
    """An element that was read, or why there is none."""

    index: int
    element: Any = None
    error: str = ""
    """What went wrong, as one text; "" if nothing did."""
    trace: str = ""
    """The traceback, from the user's own code on."""
    missing: bool = False
    """Whether a filter has dropped the element."""
    ended: int | None = None
    """How many elements the stream has, if it ends before this one."""
    progress: ReadProgress | None = None
    """How far the stream was read, if the element was not reached in the time of one request: ask again."""

    @property
    def has_element(self) -> bool:
        """Whether there is an element to show."""
        return not (self.error or self.missing or self.progress is not None or self.ended is not None)


class PipelineStep:
    """One operation of a pipeline."""

    def __init__(self, number: int, node: Node, parents: list[int]):
        self.number, self.node, self.parents = number, node, parents

    @property
    def is_stream(self) -> bool:
        """Whether its elements can only be read in order."""
        return isinstance(self.node, StreamNode)

    @functools.cached_property
    def dataset(self) -> Any:
        """The dataset that ends with this step: a MapDataset or an IterDataset."""
        return wrap(self.node)

    @functools.cached_property
    def length(self) -> int | None:
        """The number of elements of an epoch; None if it is not known without reading, or if there is no end."""
        assert isinstance(self.node, (MapNode, StreamNode))
        length = self.node.length
        return None if length is None or length >= ENDLESS else length

    @property
    def is_endless(self) -> bool:
        """Whether the elements never end."""
        assert isinstance(self.node, (MapNode, StreamNode))
        return self.node.length is not None and self.node.length >= ENDLESS

    @functools.cached_property
    def is_batched(self) -> bool:
        """Whether it, or a step before it up to where several come together, makes batches."""
        node = self.node
        while not (name := type(node).__name__).startswith(("Batch", "Bucket", "Rebatch")):
            if len(node.parents) != 1:
                return False
            (node,) = node.parents
        return bool(name)

    @property
    def seed(self) -> int | None:
        """The seed of the operation; None if it has none."""
        seed = getattr(self.node, "seed", None)
        return seed if isinstance(seed, int) else None

    def describe_spec(self) -> str:
        """Return shapes and dtypes of an element, known without reading; "" if they are not known."""
        with contextlib.suppress(Exception):  # a user's class may raise anything
            return trees.describe(self.node.element_spec())[:SPEC]
        return ""

    def describe(self) -> dict[str, Any]:
        """Return what the page knows of a step when it opens. No length: some lengths take long to compute."""
        return {
            "number": self.number,
            "call": self.node.call(),
            "kind": "stream" if self.is_stream else "map",
            "joins": self.node.joins,
            "parents": self.parents,
            "seed": self.seed,
        }


class Session:
    """A pipeline that is looked at.

    >>> import bushel
    >>> session = Session(bushel.MapDataset.range(10).map(lambda x: x * x), target="squares")
    >>> [step.node.call() for step in session.steps], session.read(1, 3).element
    (['range(10)', 'map(<lambda>)'], 9)

    Args:
      dataset: a MapDataset or an IterDataset; None if only a running program is looked at.
      target: what the user asked for, as the page's title.
      tokenizer: an object with `decode(ids)`, for rows of tokens.
      checkpoint: a position of the last step.
      start: the element that the page opens with; by default the one at the checkpoint, or 0.
      episodes: the data set of robot episodes that the target is, if it is one.
      given: the object that the user gave, such as a `TrajectoryLoader`.
      attached: the `Attachment` to a running program, or to the profile of one; or `RunningHere`, in this process.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        target: str = "",
        tokenizer: Any = None,
        checkpoint: Any = None,
        start: int | None = None,
        episodes: Any = None,
        given: Any = None,
        attached: Any = None,
    ):
        self.dataset, self.target, self.tokenizer, self.episodes = dataset, target, tokenizer, episodes
        self.given = dataset if given is None else given
        self.checkpoint, self.attached = checkpoint, attached
        self.steps: list[PipelineStep] = [] if dataset is None else _list_steps(dataset._node)
        self.start = start if start is not None else (0 if checkpoint is None else checkpoint.position)
        self._readers: dict[tuple[int, bool], StreamReader] = {}
        self._kept: dict[tuple[int, int], ElementReading] = {}
        self._lock = threading.Lock()

    @property
    def last(self) -> PipelineStep:
        """The last step: what training sees."""
        return self.steps[-1]

    def step(self, number: int) -> PipelineStep:
        """Return a step by its number; -1 is the last one."""
        if not self.steps:
            raise BadQuery("No data set is open here.")
        if not -1 <= number < len(self.steps):
            raise BadQuery(f"There is no step {number}: the pipeline has steps 0 to {len(self.steps) - 1}.")
        return self.steps[number]

    def describe(self) -> dict[str, Any]:
        """Return what the page knows when it opens. Nothing is read for it."""
        return {
            "target": self.target,
            "steps": [step.describe() for step in self.steps],
            "start": self.start,
            "first": self._choose_first(),
            "tokenizer": self.tokenizer is not None,
            "checkpoint": None if self.checkpoint is None else self.checkpoint.describe(),
            "episodes": self.episodes is not None,
        }

    def _choose_first(self) -> str | None:
        """Return the panel that the page opens with."""
        if not self.steps or (self.attached is not None and self.attached.comes_first):
            return "running"
        return "elements" if self.episodes is None else "robots"

    def read(self, step: int, index: int, *, skips: bool = False) -> ElementReading:
        """Return the element at `index` after a step. An element that fails is part of the answer, it raises nothing.

        For a stream, this reads forward for at most some seconds, and then answers with its progress. `skips` leaves
        out the elements of a stream that fail, and counts only the others.
        """
        chosen = self.step(step)
        try:
            if isinstance(chosen.node, MapNode):
                return self._read_map(chosen, index)
            return self._reader(chosen, skips).read(index, ElementReading)
        except BadQuery:
            raise
        except (Exception, SystemExit) as error:  # a user's function may call sys.exit
            return ElementReading(index, error=describe_error(error), trace=_format_trace(error))

    def _read_map(self, step: PipelineStep, index: int) -> ElementReading:
        if not step.is_endless and step.length == 0:
            return ElementReading(index, ended=0)
        if index < 0:
            raise BadQuery(f"index must be at least 0, got {index}.")
        if isinstance(step.node, CustomMap) and step.length is not None:
            index_in_dataset = index if index < step.length else index % step.length
        else:
            index_in_dataset = index
        with self._lock:
            kept = self._kept.get((step.number, index))
        if kept is None:
            element = step.dataset[index_in_dataset]
            kept = ElementReading(index, element, missing=element is None and getattr(step.node, "sparse", False))
            with self._lock:  # the page asks for rows and parts of the same element
                self._kept[step.number, index] = kept
                while len(self._kept) > KEPT:
                    del self._kept[next(iter(self._kept))]
        return kept

    def _reader(self, step: PipelineStep, skips: bool = False) -> StreamReader:
        with self._lock:
            if (step.number, skips) not in self._readers:
                # The state of a checkpoint is that of the last step, and cannot be restored into one that skips.
                checkpoint = self.checkpoint if step is self.last and not skips else None
                state = None if checkpoint is None else checkpoint.state
                assert isinstance(step.node, StreamNode)
                self._readers[step.number, skips] = StreamReader(step.node, state, skips=skips)
            return self._readers[step.number, skips]

    def origin(self, step: int, index: int) -> ElementOrigin:
        """Return the source records of an element. Raise ValueError where they are not known without reading."""
        chosen = self.step(step)
        if isinstance(chosen.node, MapNode):
            return chosen.dataset.origin(index)
        return self._reader(chosen).origin(index)

    def is_seekable(self, step: int) -> bool:
        """Return whether any element is reached at once; otherwise a stream is read from its beginning."""
        chosen = self.step(step)
        return not chosen.is_stream or self._reader(chosen).is_seekable

    def close(self) -> None:
        """Close the iterators of streams."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def _list_steps(last: Node) -> list[PipelineStep]:
    """Return the steps in the order of the data. A node that several others read is listed once."""
    numbers: dict[int, int] = {}
    steps: list[PipelineStep] = []

    def add(node: Node) -> int:
        if id(node) not in numbers:
            parents = [add(parent) for parent in node.parents]
            numbers[id(node)] = len(steps)
            steps.append(PipelineStep(len(steps), node, parents))
        return numbers[id(node)]

    add(last)
    return steps


def _format_trace(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_tb(trace, limit=-12))
