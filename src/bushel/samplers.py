"""Samplers of a DataLoader, under Grain's names."""

from bushel._src.graph.samplers import IndexSampler, Sampler, SequentialSampler

__all__ = [
    "IndexSampler",
    "Sampler",
    "SequentialSampler",
]
