"""The report of a running iterator, for programs that look at it from outside: `bushel.serve_report`."""

from bushel.running.history import FORMAT, History, load_snapshot
from bushel.running.server import ReportServer, serve_report

__all__ = ["FORMAT", "History", "ReportServer", "load_snapshot", "serve_report"]
