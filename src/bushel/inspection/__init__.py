"""What is in a file, a folder or a pipeline: for `bushel inspect`, `stats`, `bench` and `report`."""

from bushel.inspection.facts import Column, Facts, FileFacts, Histogram
from bushel.inspection.inspector import inspect_target

__all__ = ["Column", "Facts", "FileFacts", "Histogram", "inspect_target"]
