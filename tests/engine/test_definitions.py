"""Workers get definitions of a program that pickle would look up by name: cached functions, `NewType`, and others."""

import pickle
import subprocess
import sys
import textwrap

import pytest

from bushel._src.engine.pool import wire

PROGRAM = """
import dataclasses
import functools
import typing
from collections.abc import Callable

import bushel

Id = typing.NewType("Id", int)
P = typing.ParamSpec("P")
T = typing.TypeVar("T")


@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.singledispatch
def kind(x):
    return "anything"


@kind.register
def _(x: list):
    return [kind(entry) for entry in x]


@kind.register
def _(x: int):
    return "int"


def checked(function: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    return call


@dataclasses.dataclass
class Table:
    rows: list

    @functools.cached_property
    def size(self):
        return len(self.rows)

    @functools.lru_cache
    def row(self, n):
        return self.rows[n]

    def __hash__(self):
        return 7


@checked
def f(n):
    table = Table([n, n + 1])
    return Id(fibonacci(n)), kind([n, "x", [n]]), table.size, table.row(1), fibonacci.cache_parameters()["maxsize"]


expected = [f(n) for n in range(12)]
for function in (f, lambda n: f(n), functools.partial(f)):
    ds = bushel.MapDataset.range(12).map(function).to_iter_dataset()
    assert list(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))) == expected
assert list(bushel.MapDataset.range(12).map(fibonacci).to_iter_dataset().mp_prefetch(
    bushel.MultiprocessingOptions(num_workers=1))) == [fibonacci(n) for n in range(12)]
print("as in the program itself")
"""


SLOTS = """
import dataclasses
import typing

import numpy as np

import bushel


@dataclasses.dataclass(slots=True)
class Point:
    x: int
    y: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int


class Base:
    __slots__ = "x"

    def __init__(self, x):
        self.x = x


class Derived(Base):
    __slots__ = ("y", "__hidden")

    def __init__(self, x):
        super().__init__(x)
        self.y = self.__hidden = np.full(2, x)

    def hidden(self):
        return self.__hidden


class Mixed:
    __slots__ = ("x", "__dict__")

    def __init__(self, x):
        self.x = x
        self.free = 1


class Pair(typing.NamedTuple):
    x: int


for kind in (Point, Frozen, Base, Derived, Mixed, Pair):
    ds = bushel.MapDataset.range(3).map(lambda n, kind=kind: kind(n)).to_iter_dataset()
    options = bushel.MultiprocessingOptions(num_workers=1)
    for made in (list(ds.mp_prefetch(options)), list(ds.map(lambda p: p).mp_prefetch(options))):
        assert [type(p) for p in made] == [kind] * 3 and [p.x for p in made] == [0, 1, 2], kind
        assert [getattr(p, "__dict__", None) for p in made] == [getattr(kind(0), "__dict__", None)] * 3, kind
        assert kind is not Derived or made[1].hidden().tolist() == [1, 1]
print("as in the program itself")
"""


@pytest.mark.parametrize("program", [PROGRAM, SLOTS], ids=["functions", "slots"])
def test_a_program_sends_its_definitions_to_workers(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as in the program itself\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` is new in Python 3.12")
def test_a_type_alias_of_a_program_is_sent():
    text = "type Row = dict[str, int]\ndef f(row: Row) -> Row: return row\n"
    module = {"__name__": "__main__"}
    exec(textwrap.dedent(text), module)
    assert "Row" in repr(pickle.loads(wire.dumps(module["f"])).__annotations__)


def test_what_a_worker_can_import_is_sent_by_name():
    from helpers.importable_definitions import Name, cached, dispatched

    for value in (Name, cached, dispatched):
        assert pickle.loads(wire.dumps(value)) is value
