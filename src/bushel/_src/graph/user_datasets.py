"""Datasets that users have written, as nodes: their `__getitem__` and `__iter__`, seen through the contract."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bushel._src.base.blocks import Block
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.private_elements import make_private
from bushel._src.base.state_names import in_states, rename_keys
from bushel._src.graph.cursors import CLOSED, Cursor, InUse, Mark, State
from bushel._src.graph.node import Epochs, MadeOf, MapNode, Node, Origin, Plan, describe_failure, made_of_nothing
from bushel._src.graph.streams import Opener, Ordered, StreamNode


@dataclasses.dataclass(frozen=True, eq=False)
class Custom(Node):
    """What all nodes of users' own datasets share."""

    dataset: Any

    @property
    def parents(self) -> tuple[Any, ...]:
        return tuple(parent._node for parent in self.dataset.parents)

    def element_spec(self) -> Any:
        return self.dataset._element_spec

    @property
    def users_class(self) -> type | None:
        return type(self.dataset)

    def parameters(self) -> dict[str, Any]:
        return rename_keys(type(self.dataset), dict(vars(self.dataset)))

    def call(self) -> str:
        return f"pipe({type(self.dataset).__name__})" if self.parents else f"{type(self.dataset).__name__}()"


@in_states("own_map_dataset")
class CustomMap(Custom, MapNode):
    """A user's subclass of MapDataset as a node."""

    pure = False  # it may do anything with an index

    def find_length(self) -> int:
        return len(self.dataset)

    def plan(self, indices: np.ndarray) -> Plan:
        return _CustomReads(self, indices.tolist())

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return made_of_nothing()  # which elements of its parents it reads, only the user knows

    def origin(self, index: int) -> Origin:
        return Origin(type(self.dataset).__name__, (index,))

    @property
    def epochs(self) -> Epochs:
        return Epochs.DIFFERENT

    @property
    def seed_for_children(self) -> int | None:
        return getattr(self.dataset, "_seed_rng_seed", None)


@dataclasses.dataclass(slots=True)
class _CustomReads(Plan):
    custom: CustomMap
    indices: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        dataset, rows = self.custom.dataset, []
        for index in self.indices[low:high]:
            try:
                rows += make_private([dataset[index]])
            except Exception as error:
                raise RowFailed(
                    len(rows), locate_error(error, describe_failure(self.custom.call(), index, ()))
                ) from error
        return rows


@in_states("own_iter_dataset")
class CustomStream(Custom, StreamNode, Ordered):
    """A user's subclass of IterDataset as a node."""

    def open(self, opener: Opener) -> Cursor:
        return IteratorCursor(
            opener.open_users_dataset(self.dataset), lambda: opener.open_users_dataset_apart(self.dataset)
        )


class IteratorCursor(Cursor):
    """A user's own iterator as a cursor.

    If the caller can make `another` such iterator, a mark is the state of up to 64 elements ago and a count, since a
    user's `get_state` may be slow. Going back reads these elements again, and so does asking for the state of an
    earlier mark, with an iterator of its own. Without `another`, a mark is the state itself.
    """

    EVERY = 64

    def __init__(self, iterator: Iterator[Any], another: Callable[[], Iterator[Any]] | None = None):
        self._iterator, self._another = iterator, another
        self._every = 1 if another is None else self.EVERY
        self._in_use = InUse(iterator)
        self._base: State | None = None
        self._since = 0
        self._settled = True
        """Whether the iterator is `_since` elements after `_base`. It may not be after an error in `__next__`."""

    def pull(self, count: int) -> Block:
        rows: list[Any] = []
        in_use = self._in_use
        in_use.users += 1  # as `with` does, in a fifth of the time: this is done for every element
        try:
            if in_use.is_closed:
                raise ValueError(CLOSED)
            self._settled = False
            for _ in range(count):
                try:
                    rows += make_private([next(self._iterator)])  # the iterator may keep a reference to it
                except StopIteration:
                    self._base = None  # the end may have a state of its own
                    break
                self._since += 1
            self._settled = True
        finally:
            in_use.users -= 1
            if in_use.is_closed:
                in_use.close()
        return rows

    def mark(self) -> Mark:
        if self._base is None or self._since >= self._every:
            self._base, self._since = self._iterator_state(), 0
        return self._base, self._since

    def rewind(self, mark: Mark) -> None:
        base, count = mark
        with self._in_use:
            self._get_method("set_state")(copy.deepcopy(base))
            for _ in range(count):
                next(self._iterator)
        self._base, self._since, self._settled = (base, count, True) if count else (None, 0, True)

    def state_of(self, mark: Mark) -> State:
        base, count = mark
        if not count:
            return copy.deepcopy(base)
        if base is self._base and count == self._since and self._settled:
            return self._iterator_state()
        assert self._another is not None
        other = IteratorCursor(self._another())
        other.rewind(mark)
        state = other._iterator_state()
        other.close()
        return state

    def mark_of(self, state: State) -> Mark:
        return copy.deepcopy(state), 0

    def _iterator_state(self) -> State:
        return copy.deepcopy(self._get_method("get_state")())  # the iterator may change the dict that it returned

    def get_next_index(self) -> int:
        return self._get_method("_get_next_index")()

    def set_next_index(self, index: int) -> None:
        self._get_method("_set_next_index")(index)
        self._base = None

    def start_prefetch(self) -> None:
        getattr(self._iterator, "start_prefetch", lambda: None)()

    def close(self) -> None:
        self._in_use.close()

    def _get_method(self, name: str) -> Any:
        method = getattr(self._iterator, name, None)
        if method is None:
            raise TypeError(
                f"{type(self._iterator).__name__} has no `{name}`: the iterator of an IterDataset must be a "
                "bushel.DatasetIterator with `__next__`, `get_state` and `set_state`."
            )
        return method
