"""Digests for the names of files in a cache: no element is left out, and functions count with what they read."""

import collections
import copy
import importlib
import pathlib
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.state.digest import digest, examine, whole_digest


def closed(value):
    return lambda x: (x, value)


CONTAINERS = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "dict": lambda values: dict(enumerate(values.tolist())),
    "array": lambda values: np.tile(values, (8, 1)).T,
    "objects": lambda values: values.astype(object),
    "nested": lambda values: {"a": [{"b": values.tolist()}]},
}


@settings(deadline=None)
@given(place=st.integers(0, 2999), kind=st.sampled_from(sorted(CONTAINERS)))
def test_every_element_counts(place, kind):
    values = np.arange(3000)
    before = closed(CONTAINERS[kind](values)), closed(CONTAINERS[kind](values.copy()))
    assert whole_digest(before[0]) == whole_digest(before[1])
    values[place] += 1
    assert whole_digest(closed(CONTAINERS[kind](values))) != whole_digest(before[0])


def test_samples_stand_for_all_only_where_they_are_asked_for():
    few = [{(n,): n != changed for n in range(2000)} for changed in (None, 5)]
    assert examine(few[0], sampled=True).digest == examine(few[1], sampled=True).digest
    assert examine(few[0], sampled=True).sampled
    assert digest(few[0]) != digest(few[1])


def test_values_deep_inside_a_tree_are_part_of_the_digest():
    def deep(value):
        for _ in range(20):
            value = [value]
        return closed(value)

    assert whole_digest(deep(1)) != whole_digest(deep(2))


# Modules of the user, changed one line at a time.

MODULE = """
    import dataclasses
    import enum
    import functools
    import math
    import numpy as np
    import mine_config as config

    SCALE = 1.0
    TABLE = {n: True for n in range(1000)}
    UNUSED = 1.0

    class Colour(enum.Enum):
        RED = 1

    class Base:
        LIMITS = {"low": 0}

        def shifted(self, x):
            return x + SHIFT

    class Helper(Base):
        def __init__(self, by):
            self.by = by * 1

        @property
        def doubled(self):
            return self.by * 2

        @staticmethod
        def still(x):
            return x

    SHIFT = 0.5
    HELPER = Helper(3)

    @functools.lru_cache
    def remembered(x):
        return x - 1

    def innermost(x):
        return x * SCALE

    def inner(x):
        return [innermost(y) for y in x], (lambda: config.offset)()

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def standardize(x):
        x.UNUSED = math.pi * config.deeper.constant
        TABLE[3], Colour.RED, remembered(np.float32(2)), even(3)
        return inner(x), HELPER.doubled, Helper(2).shifted(1), len(x)
"""
CONFIG = """
    import mine_deeper as deeper

    offset = 1.0
    unused = 1.0
"""
DEEPER = "constant = 1.0\nother = 1.0\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Gives the digest of `standardize` after lines of the modules were replaced."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("mine", "mine_config", "mine_deeper")

    def made(old="", new="", digest=whole_digest):
        for name in names:
            sys.modules.pop(name, None)
        found = False
        for name, text in zip(names, (MODULE, CONFIG, DEEPER)):
            text = textwrap.dedent(text)
            found |= old in text
            (tmp_path / f"{name}.py").write_text(text.replace(old, new, 1))
        assert found, f"no module has {old!r}"
        importlib.invalidate_caches()
        return digest(importlib.import_module("mine").standardize)

    yield made
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 1.0", "SCALE = 2.0"),  # a constant that a function reads which is called by one that is called
        ("range(1000)}", "range(1001)}"),
        ("n: True for", "n: n != 5 for"),
        ("RED = 1", "RED = 2"),
        ('"low": 0', '"low": 1'),
        ("x + SHIFT", "x - SHIFT"),
        ("SHIFT = 0.5", "SHIFT = 0.6"),
        ("by * 1", "by * 2"),
        ("self.by * 2", "self.by * 3"),
        ("Helper(3)", "Helper(4)"),
        ("return x - 1", "return x - 2"),
        ("x * SCALE", "x / SCALE"),
        ("n == 0 or", "n == 1 or"),
        ("n != 0 and", "n != 1 and"),
        ("\noffset = 1.0", "\noffset = 2.0"),
        ("constant = 1.0", "constant = 2.0"),
    ],
)
def test_what_a_function_reads_counts(mine, old, new):
    assert mine() == mine() != mine(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 1.0", "UNUSED = 2.0"),  # the name of an attribute alone
        ("\nunused = 1.0", "\nunused = 2.0"),  # a module does not count whole
        ("other = 1.0", "other = 2.0"),
        ("def standardize(x):", "# words\n\ndef standardize(x):\n    'Words.'"),
    ],
)
def test_what_it_does_not_read_does_not(mine, old, new):
    assert mine() == mine(old, new)


BODIES = [
    "return x",
    "return None",
    "x.y = None",
    "return 5",
    "return 5000",
    "return 'Words.'",
    "return 'a', 'Words.', 'a'",
    "return x['a'], 2.5, None, [1, 2, 3], max(x, key=len)",
    "return [f'{y}!' for y in x if y is not None]",
]


def test_a_docstring_does_not_count():
    """Wherever Python keeps it among the constants. A constant of the function itself counts."""

    def define(body: str) -> Any:
        names: dict[str, Any] = {}
        exec(body, names)
        return names["f"]

    digests = set()
    for body in BODIES:
        plain = define(f"def f(x):\n    {body}\n")
        documented = define(f"# words\n\ndef f(x):\n    'Words.'\n    {body}\n")
        assert digest(plain) == digest(documented), body
        assert whole_digest(plain) == whole_digest(documented), body
        digests.add(digest(plain))
    assert len(digests) == len(BODIES)


def test_constants_of_a_large_function_count():
    """Python needs more than one byte for the places of some of them."""

    def define(*numbers: float) -> Any:
        names: dict[str, Any] = {}
        exec(f"def f(x):\n    return [{', '.join(f'x + {number}' for number in numbers)}]\n", names)
        return names["f"]

    numbers = [number + 0.5 for number in range(700)]
    for place in (0, 3, 254, 255, 256, 257, 511, 512, 699):
        changed = [*numbers[:place], 1000.5, *numbers[place + 1 :]]
        assert digest(define(*numbers)) != digest(define(*changed))
        twice = [*numbers[:place], numbers[place - 1], *numbers[place + 1 :]]
        assert digest(define(*numbers)) != digest(define(*twice))
    assert digest(define(*numbers)) == digest(define(*numbers))


def test_what_is_installed_counts_by_name(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    (installed / "bought-1.0.dist-info").mkdir(parents=True)
    (installed / "bought-1.0.dist-info" / "RECORD").write_text("bought.py,,\nbought-1.0.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(installed)
    found = []
    for constant in (1, 2):
        (installed / "bought.py").write_text(f"A = {constant}\ndef change(x):\n    return x + A\nclass C:\n    B = A\n")
        sys.modules.pop("bought", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        bought = importlib.import_module("bought")
        found.append(whole_digest(closed([bought.change, bought.C, bought.C()])))
    sys.modules.pop("bought")
    assert found[0] == found[1]


def test_values_that_contain_themselves_have_a_digest():
    one, other = SimpleNamespace(), SimpleNamespace()
    one.other, other.one, one.calls = other, one, [lambda: one, lambda: other]
    assert len(whole_digest(one)) == 16


PROGRAM = """
import functools
import numpy as np
from bushel._src.state.digest import whole_digest

NAMES = {"one", "two", "three", "four", "five"}
TABLE = {name: np.arange(20000) for name in NAMES}

class Reader:
    def __init__(self):
        self.method = self.read

    def read(self, x):
        return TABLE[x], NAMES

READER = Reader()

def standardize(x, by):
    return READER.method(x), helper(by)

def helper(by):
    return standardize, by

print(whole_digest(functools.partial(standardize, by=2)))
"""


def test_a_digest_is_the_same_in_every_process():
    found = set()
    for seed in ("0", "1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=250,
        )
        found.add(run.stdout)
    assert len(found) == 1


ALIKE = [
    *(1, True, 1.0, 1 + 0j, "1", b"1", bytearray(b"1")),
    *(np.int64(1), np.int32(1), np.float64(1), np.array(1), np.array([1])),
    *(0.0, -0.0, 0, False, None, "", b"", (), [], {}, set(), frozenset()),
    *(collections.OrderedDict(), collections.deque(), collections.deque([1]), collections.deque([1], 3), [3, [1]]),
    *([1], (1,), {1}, frozenset({1}), {1: 1}, {True: 1}, {1: True}, [[1]], [(1,)], ([1],), range(1), slice(1)),
    *("a", b"a", bytearray(b"a"), pathlib.PurePosixPath("a"), ["a"]),
    *(np.array("a"), np.array(["a"]), np.array(["a"], object)),
    *(float("nan"), "nan", 10**5000, 10**5000 + 1, str(10**100), 10**100),
    *([1] * 500, [1] * 499 + [True], [1] * 499 + [1.0], np.ones(2), np.ones((2, 1)), np.ones(2, "f4")),
]  # fmt: skip


def test_values_that_are_alike_have_digests_of_their_own():
    digests = [digest(value) for value in ALIKE]
    assert len(set(digests)) == len(ALIKE)
    assert [digest(copy.deepcopy(value)) for value in ALIKE] == digests
