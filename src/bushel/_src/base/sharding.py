"""Which part of the data a process reads, as numbers: shard `i` of `n`."""

from __future__ import annotations

import dataclasses
import logging

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states

logger = logging.getLogger("bushel")


@public("bushel")
@in_states("ShardOptions")
@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """One of `shard_count` parts of the data.

    Args:
      shard_index: which part, from 0 to shard_count - 1.
      shard_count: how many parts there are.
      drop_remainder: True gives all parts the same length, and a few records are in no part. Otherwise the first parts
        have one record more.

    >>> ShardOptions(shard_index=0, shard_count=4)
    ShardOptions(shard_index=0, shard_count=4, drop_remainder=False)
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        checks.positive(self.shard_count, "shard_count")
        if not 0 <= checks.integer(self.shard_index, "shard_index") < self.shard_count:
            raise ValueError(
                f"shard_index must be in [0, shard_count - 1], got shard_index {self.shard_index} with "
                f"shard_count {self.shard_count}."
            )


@public("bushel")
@in_states("NoSharding")
class NoSharding(ShardOptions):
    """All of the data in every process.

    >>> NoSharding()
    NoSharding(shard_index=0, shard_count=1, drop_remainder=False)
    """

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


@public("bushel")
@in_states("ShardByJaxProcess")
class ShardByJaxProcess(ShardOptions):
    """One part for each JAX process; all of the data where JAX is not installed.

    >>> ShardByJaxProcess(drop_remainder=True).shard_count
    1
    """

    def __init__(self, drop_remainder: bool = False):
        index, count = jax_process()
        super().__init__(shard_index=index, shard_count=count, drop_remainder=drop_remainder)


def jax_process() -> tuple[int, int]:
    """Which JAX process this is, and of how many; (0, 1) without JAX."""
    try:
        import jax
    except ImportError:
        return 0, 1
    return jax.process_index(), jax.process_count()


def even_split(count: int, options: ShardOptions) -> tuple[int, int]:
    """The records of one shard as a range [start, end). Shards are consecutive; the first ones take the remainder.

    >>> [even_split(10, ShardOptions(index, 3)) for index in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    """
    size, over = divmod(count, options.shard_count)
    index = options.shard_index
    if not options.drop_remainder:
        return index * size + min(index, over), (index + 1) * size + min(index + 1, over)
    if over:
        logger.warning(
            "drop_remainder=True leaves out %d of %d records: they are in none of the %d shards.",
            over,
            count,
            options.shard_count,
        )
    return index * size, (index + 1) * size
