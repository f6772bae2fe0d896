"""Passes over a dataset: warns where a shuffled one is read again from the start, since each pass has the same order.

Iterators say when they begin and end a pass; this module keeps which datasets were read to their end.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING

from bushel._src.base.errors import BushelWarning
from bushel._src.base.lazy import Lazy
from bushel._src.graph import reindex
from bushel._src.graph.node import Node
from bushel._src.graph.streams import Elements, StreamNode

if TYPE_CHECKING:
    from bushel._src.graph import portions
else:
    portions = Lazy("bushel._src.graph.portions")

_finished: weakref.WeakSet[Node] = weakref.WeakSet()
"""Datasets that an iterator has read to the end."""

_warned: weakref.WeakSet[Node] = weakref.WeakSet()


class Passes:
    """The passes over the dataset of one iterator, by this iterator and by others in this process."""

    def __init__(self, stream: StreamNode):
        # `iter(ds)` of a MapDataset makes a new stream node each time, around the same map node.
        self._dataset: Node = stream.parent if isinstance(stream, Elements) else stream

    def finish(self) -> None:
        """Notes that the end was reached."""
        _finished.add(self._dataset)

    @property
    def repeat_the_order(self) -> bool:
        """Whether the dataset is shuffled, is not repeated, and was read to its end before."""
        node = self._dataset
        return node in _finished and node not in _warned and _shuffles_once(node)

    def warn_of_same_order(self) -> None:
        """Warns the caller of `next`, once for each dataset."""
        _warned.add(self._dataset)
        warnings.warn(
            "This shuffled dataset was read to its end before, and a new iterator gives the same order again, as in "
            "Grain. For a new order every epoch, loop once over `ds.repeat(num_epochs)`, or keep one iterator of "
            "`ds.repeat()`, which does not end.",
            BushelWarning,
            stacklevel=3,
        )


def _shuffles_once(node: Node) -> bool:
    shuffled = False
    nodes = [node]
    for step in nodes:  # the list grows while it is read
        if isinstance(step, (reindex.Repeat, portions.RepeatStream)):
            return False
        shuffled = shuffled or isinstance(step, reindex.Shuffle)
        nodes.extend(step.parents)
    return shuffled
