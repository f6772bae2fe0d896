# ruff: noqa: E501
"""Programs that Hypothesis writes: an edit that changes what they do changes the digest, and no other edit does."""

import importlib
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bushel import MapDataset
from bushel._src.state.identity import identify, identify_in_full

# Each places a number NUMBER where a function `NAME(x)` reads it.
HOLDERS = [
    "def NAME(x): return x * NUMBER",
    "NAME_K = NUMBER\ndef NAME(x): return x * NAME_K",
    "NAME_T = {'a': [0] * 200 + [NUMBER]}\ndef NAME(x): return x * NAME_T['a'][200]",
    "NAME_A = np.arange(300)\nNAME_A[150] = NUMBER\ndef NAME(x): return x * int(NAME_A[150])",
    "def NAME(x, by=NUMBER): return x * by",
    "def NAME(x, *, by=NUMBER): return x * by",
    "def NAME_make(by):\n    def inner(x): return x * by\n    return inner\nNAME = NAME_make(NUMBER)",
    "class NAME_C:\n    K = NUMBER\n    def __call__(self, x): return x * self.K\nNAME = NAME_C()",
    "class NAME_C:\n    def __init__(self, k): self.k = k\n    def __call__(self, x): return x * self.k\nNAME = NAME_C(NUMBER)",
    "class NAME_C:\n    @property\n    def k(self): return NUMBER\n    def __call__(self, x): return x * self.k\nNAME = NAME_C()",
    "class NAME_C:\n    __slots__ = ('k',)\n    def go(self, x): return x * self.k\nNAME_O = NAME_C()\nNAME_O.k = NUMBER\nNAME = NAME_O.go",
    "@functools.lru_cache\ndef NAME(x): return x * NUMBER",
    "def NAME_f(x, by): return x * by\nNAME = functools.partial(NAME_f, by=NUMBER)",
    "def NAME(x): return x * NAME.by\nNAME.by = NUMBER",
    "def NAME(x):\n    class A:\n        'Words.'\n        k = NUMBER\n    return x * A.k",
    "class NAME_E(enum.Enum):\n    A = NUMBER\ndef NAME(x): return x * NAME_E.A.value",
    "class NAME_N(NamedTuple):\n    k: int\n    def __call__(self, x): return x * self.k\nNAME = NAME_N(NUMBER)",
    "NAME_S = [('a', lambda x: x * NUMBER)]\ndef NAME(x): return NAME_S[0][1](x)",
]
COMBINED = [
    "def NAME(x): return LEFT(x) + RIGHT(x)",
    "def NAME(x): return [LEFT, RIGHT][x % 2](x)",
    "class NAME_P:\n    def __init__(self, *steps): self.steps = steps\n    def __call__(self, x):\n"
    "        for step in self.steps: x = step(x)\n        return x\nNAME = NAME_P(LEFT, RIGHT)",
    "def NAME_wrap(f):\n    @functools.wraps(f)\n    def inner(x): return f(x) + RIGHT(x)\n    return inner\nNAME = NAME_wrap(LEFT)",
]  # fmt: skip
HEAD = "import enum, functools\nfrom typing import NamedTuple\nimport numpy as np\n"


@st.composite
def programs(draw):
    """A program with several numbers, as a list of pieces. The last piece defines f."""
    pieces, names = [], []
    for number in range(draw(st.integers(1, 4))):
        pieces.append(draw(st.sampled_from(HOLDERS)).replace("NAME", f"part{number}"))
        names.append(f"part{number}")
    while len(names) > 1:
        left, right, *names = names
        name = f"join{len(pieces)}"
        text = draw(st.sampled_from(COMBINED)).replace("LEFT", left).replace("RIGHT", right)
        pieces.append(text.replace("NAME", name))
        names.append(name)
    return [*pieces, f"f = {names[0]}"]


def number_pieces(pieces, numbers):
    return [piece.replace("NUMBER", str(number)) for piece, number in zip(pieces, numbers, strict=True)]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Imports the text of a program from a folder of its own, and gives its pipeline."""
    count = iter(range(10**6))

    def load(pieces):
        folder = tmp_path_factory.mktemp("generated")
        folder.joinpath(f"generated_{next(count)}.py").write_text(HEAD + "\n".join(map(textwrap.dedent, pieces)))
        (file,) = folder.iterdir()
        sys.path.insert(0, str(folder))
        try:
            return MapDataset.range(4).map(importlib.import_module(file.stem).f)
        finally:
            sys.path.remove(str(folder))
            sys.modules.pop(file.stem, None)

    return load


def keys(ds):
    return identify(ds._node)[2].partition(";")[0], identify_in_full(ds._node, trust_source=False, method="save")


WORDS = ["", "\n\n", "# words\n", "'''Words of the module.'''\n", "UNUSED = 5\n", "def unused(x): return x\n"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), pieces=programs())
def test_a_digest_changes_with_what_a_program_does_and_with_nothing_else(load, data, pieces):
    numbers = [data.draw(st.integers(2, 9)) for _ in pieces]
    before = load(number_pieces(pieces, numbers))
    words = [data.draw(st.sampled_from(WORDS)) for _ in pieces]
    documented = [
        (word + piece).replace(
            "def __call__(self, x): return", "def __call__(self, x):\n        'Words.'\n        return"
        )
        for word, piece in zip(words, number_pieces(pieces, numbers), strict=True)
    ]
    assert keys(load(documented)) == keys(before)
    place = data.draw(st.integers(0, len(pieces) - 2))
    if "NUMBER" not in pieces[place]:
        return
    numbers[place] += data.draw(st.integers(1, 3))
    after = load(number_pieces(pieces, numbers))
    if list(after) != list(before):
        assert all(one != other for one, other in zip(keys(after), keys(before), strict=True))
