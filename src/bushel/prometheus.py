"""Figures of iterators for Prometheus: read when they are scraped, from the report of each iterator."""

from bushel._src.reporting.prometheus import export

__all__ = [
    "export",
]
