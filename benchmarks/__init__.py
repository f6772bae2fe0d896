"""Bushel against Grain on the same pipelines: `python -m benchmarks.run`."""
