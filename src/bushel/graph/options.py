"""Options inside a pipeline: the node that holds them, and those of a whole pipeline taken together."""

from __future__ import annotations

import dataclasses

from bushel.base.options import DatasetOptions
from bushel.graph.streams import Elements, OneParent, StreamNode


@dataclasses.dataclass(frozen=True, eq=False)
class WithOptions(OneParent):
    """The elements of its parent; `options` hold for the whole pipeline, before and after this place."""

    options: DatasetOptions

    transparent = True  # and it takes a place, in Grain it does: a seed after it would differ otherwise

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return f"pipe(WithOptionsIterDataset, {self.options})"


_NONE_CHOSEN = DatasetOptions()


def options_of(node: StreamNode) -> DatasetOptions:
    """The options of a whole pipeline: what was chosen last holds, and in an earlier part before a later one."""
    options = node.options if type(node) is WithOptions else _NONE_CHOSEN
    for parent in node.parents if type(node) is not Elements else ():  # nothing before a stream has any
        if isinstance(parent, StreamNode):
            options = options.merge(options_of(parent))
    return options
