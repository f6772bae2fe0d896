"""How a pipeline runs: where blocks are computed and in which order they are handed over. Never what they hold."""

from bushel.engine.opener import open_stream

__all__ = ["open_stream"]
