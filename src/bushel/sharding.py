"""Which part of the data a process reads, under Grain's names."""

from bushel._src.base.options import NoSharding, ShardByJaxProcess, ShardOptions

__all__ = [
    "NoSharding",
    "ShardByJaxProcess",
    "ShardOptions",
]
