"""What the page looks at: a pipeline as a list of steps, and its elements after any step.

Opening a session reads nothing. Lengths, shapes and elements are found when the page asks for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import traceback
from typing import Any

from bushel._src.base import trees
from bushel._src.base.errors import describe_error
from bushel._src.datasets.base_dataset import wrap
from bushel._src.graph.custom import CustomMap
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.origins import ElementOrigin
from bushel._src.graph.streams import StreamNode
from bushel._src.view.queries import BadQuery
from bushel._src.view.stream_reader import Progress, StreamReader

ENDLESS = 1 << 53
"""What is longer has no end: batches of an endless dataset are fewer than INFINITE. JavaScript counts up to here."""


SPEC = 4_000
"""How many characters of the shapes of an element are shown."""
KEPT = 2
"""How many elements of map datasets are kept in memory."""


@dataclasses.dataclass(frozen=True)
class Reading:
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
    progress: Progress | None = None
    """How far the stream was read, if the element was not reached in the time of one request: ask again."""

    @property
    def has_element(self) -> bool:
        """Whether there is an element to show."""
        return not (self.error or self.missing or self.progress is not None or self.ended is not None)


class Step:
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
        """Shapes and dtypes of an element, known without reading; "" if they are not known."""
        with contextlib.suppress(Exception):  # a user's class may raise anything
            return trees.describe(self.node.element_spec())[:SPEC]
        return ""

    def describe(self) -> dict[str, Any]:
        """What the page knows of a step when it opens. No length: some lengths take long to compute."""
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
        self.steps: list[Step] = [] if dataset is None else _list_steps(dataset._node)
        self.start = start if start is not None else (0 if checkpoint is None else checkpoint.position)
        self._readers: dict[tuple[int, bool], StreamReader] = {}
        self._kept: dict[tuple[int, int], Reading] = {}
        self._lock = threading.Lock()

    @property
    def last(self) -> Step:
        """The last step: what training sees."""
        return self.steps[-1]

    def step(self, number: int) -> Step:
        """A step by its number; -1 is the last one."""
        if not self.steps:
            raise BadQuery("No data set is open here.")
        if not -1 <= number < len(self.steps):
            raise BadQuery(f"There is no step {number}: the pipeline has steps 0 to {len(self.steps) - 1}.")
        return self.steps[number]

    def describe(self) -> dict[str, Any]:
        """What the page knows when it opens. Nothing is read for it."""
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
        """The panel that the page opens with."""
        if not self.steps or (self.attached is not None and self.attached.comes_first):
            return "running"
        return "elements" if self.episodes is None else "robots"

    def read(self, step: int, index: int, *, skips: bool = False) -> Reading:
        """The element at `index` after a step. An element that fails is part of the answer, it raises nothing.

        For a stream, this reads forward for at most some seconds, and then answers with its progress. `skips` leaves
        out the elements of a stream that fail, and counts only the others.
        """
        chosen = self.step(step)
        try:
            if isinstance(chosen.node, MapNode):
                return self._read_map(chosen, index)
            return self._reader(chosen, skips).read(index, Reading)
        except BadQuery:
            raise
        except (Exception, SystemExit) as error:  # a user's function may call sys.exit
            return Reading(index, error=describe_error(error), trace=_format_trace(error))

    def _read_map(self, step: Step, index: int) -> Reading:
        if not step.is_endless and step.length == 0:
            return Reading(index, ended=0)
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
            kept = Reading(index, element, missing=element is None and getattr(step.node, "sparse", False))
            with self._lock:  # the page asks for rows and parts of the same element
                self._kept[step.number, index] = kept
                while len(self._kept) > KEPT:
                    del self._kept[next(iter(self._kept))]
        return kept

    def _reader(self, step: Step, skips: bool = False) -> StreamReader:
        with self._lock:
            if (step.number, skips) not in self._readers:
                # The state of a checkpoint is that of the last step, and cannot be restored into one that skips.
                checkpoint = self.checkpoint if step is self.last and not skips else None
                state = None if checkpoint is None else checkpoint.state
                assert isinstance(step.node, StreamNode)
                self._readers[step.number, skips] = StreamReader(step.node, state, skips=skips)
            return self._readers[step.number, skips]

    def origin(self, step: int, index: int) -> ElementOrigin:
        """The source records of an element. Raises ValueError where they are not known without reading."""
        chosen = self.step(step)
        if isinstance(chosen.node, MapNode):
            return chosen.dataset.origin(index)
        return self._reader(chosen).origin(index)

    def is_seekable(self, step: int) -> bool:
        """Whether any element is reached at once; otherwise a stream is read from its beginning."""
        chosen = self.step(step)
        return not chosen.is_stream or self._reader(chosen).is_seekable

    def close(self) -> None:
        """Closes the iterators of streams."""
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()


def _list_steps(last: Node) -> list[Step]:
    """The steps in the order of the data. A node that several others read is listed once."""
    numbers: dict[int, int] = {}
    steps: list[Step] = []

    def add(node: Node) -> int:
        if id(node) not in numbers:
            parents = [add(parent) for parent in node.parents]
            numbers[id(node)] = len(steps)
            steps.append(Step(len(steps), node, parents))
        return numbers[id(node)]

    add(last)
    return steps


def _format_trace(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_tb(trace, limit=-12))
