"""Marks on the members of a contract, for readers and for tests/test_contracts.py. They do nothing at run time."""

from __future__ import annotations

from typing import TypeVar

Member = TypeVar("Member")


def optional(member: Member) -> Member:
    """Marks a method that has a documented default. A subclass may replace it; no other method with a body may be
    replaced.
    """
    return member
