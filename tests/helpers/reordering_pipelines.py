"""Random pipelines that move records and do nothing else to them: what columns and explanations are tested on."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from bushel import MapDataset
from bushel._src.base.checks import INFINITE
from bushel._src.graph.node import Epochs


class Records:
    """Records that say who they are: (source, number)."""

    def __init__(self, name: int, length: int):
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.name, index


seeds = st.integers(0, 2**32 - 1)


@st.composite
def bases(draw):
    name, length = draw(st.integers(0, 3)), draw(st.integers(1, 12))
    return MapDataset.source(Records(name, length))


@st.composite
def moved(draw, depth=4):
    """A pipeline that moves records and does nothing else to them."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(bases())
    kind = draw(
        st.sampled_from(["shuffle", "window", "slice", "list", "repeat", "same", "seed", "map", "concatenate", "mix"])
    )
    if kind in ("concatenate", "mix"):
        parts = [draw(moved(depth=depth - 2 if depth > 2 else 0)) for _ in range(draw(st.integers(1, 3)))]
        assume(all(0 < len(part) < INFINITE for part in parts))
        return getattr(MapDataset, kind)(parts)
    ds = draw(moved(depth=depth - 1))
    length = len(ds)
    if kind == "shuffle":
        return ds.shuffle(draw(seeds))
    if kind == "window":
        return ds.window_shuffle(draw(st.integers(1, 5)), seed=draw(seeds))
    if kind == "slice":
        low = draw(st.integers(0, length - 1))
        return ds[low : draw(st.integers(low + 1, length)) : draw(st.integers(1, 3))]
    if kind == "list":
        return ds.slice(draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=8)))
    if kind == "where" and ds._node.epochs is not Epochs.DIFFERENT:
        return ds.where(ds.column(lambda record: True))
    if kind == "order":
        return ds.order_by(ds.column(lambda record: record[1] % 3), noise=draw(st.sampled_from([0, 0.5])), seed=4)
    if kind == "repeat":
        return ds.repeat(draw(st.integers(1, 2)))
    if kind == "same":
        return ds.repeat(draw(st.integers(1, 2)), reseed_each_epoch=False)
    return ds.seed(draw(seeds)) if kind == "seed" else ds.map(lambda record: record)


def epoch(ds, number):
    length = len(ds)
    return [ds[index] for index in range(number * length, (number + 1) * length)]
