"""Definitions in a module that every process can import, for tests/engine/test_definitions.py."""

import functools
import typing

Name = typing.NewType("Name", str)


@functools.cache
def cached(x):
    return x


@functools.singledispatch
def dispatched(x):
    return x
