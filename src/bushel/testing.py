"""Laws that every pipeline should keep: run these checks on your own pipelines.

A check raises AssertionError, which shows the first element that breaks the law.
"""

from bushel._src.testing import check_gives_new_records, check_resumes_anywhere, check_same_for_any_executor, same

__all__ = [
    "check_gives_new_records",
    "check_resumes_anywhere",
    "check_same_for_any_executor",
    "same",
]
