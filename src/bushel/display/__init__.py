"""Elements as people can look at them: a description that the viewer's page draws, and HTML for notebooks."""

from bushel.display.describe import describe_element
from bushel.display.shown import ShownElement

__all__ = ["ShownElement", "describe_element"]
