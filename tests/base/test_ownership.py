"""The gate: what passes it shares no memory with anything else, of whatever class it is.

Whole pipelines are in `tests/engine/test_private.py`. Here are the classes that hide what they hold.
"""

from __future__ import annotations

import array
import collections
import io
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bushel._src.base.private_elements import make_private


def pass_gate(make: Callable[[], Any], received: bool = False) -> Any:
    """A new object after the gate. Nothing but the gate has held it."""
    return make_private([make()], received=received)[0]


class Own:
    def __init__(self, **attributes: Any):
        vars(self).update(attributes)


class Shared:
    """All objects of this class have the same attributes."""

    attributes: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, a: np.ndarray):
        self.__dict__ = Shared.attributes
        self.a = a


def test_objects_with_the_same_attributes_are_copied():
    first, second = make_private([Shared(np.zeros(2)), Shared(np.zeros(2))])
    first.a += 1
    assert second.a.tolist() == [0, 0] and Shared.attributes["a"].tolist() == [0, 0]


class Slotted:
    __slots__ = ("a", "lock")

    def __init__(self, a: Any):
        self.a, self.lock = a, threading.Lock()


class Closed(dict[str, Any]):
    """A dict that nobody can change, and that `copy` cannot copy."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("closed")


@pytest.mark.parametrize(
    ("make", "find"),
    [
        (lambda a: Own(a=a, lock=threading.Lock()), lambda x: x.a),
        (lambda a: Own(a=a, steps=(n for n in range(3))), lambda x: x.a),
        (Slotted, lambda x: x.a),
        (lambda a: Closed(a=a), lambda x: x["a"]),
        (lambda a: collections.deque([a, Slotted(a)]), lambda x: x[0]),
        (lambda a: Own(b=Own(a=a, lock=threading.Lock())), lambda x: x.b.a),
        (lambda a: {"b": [Slotted({"a": a})]}, lambda x: x["b"][0].a["a"]),
    ],
    ids=["lock", "generator", "slots", "dict", "deque", "inside", "deep inside"],
)
def test_the_parts_of_a_new_object_that_cannot_be_copied_are_private(make, find):
    kept = np.zeros(2)
    find(pass_gate(lambda: make(kept)))[:] = 1
    assert kept.tolist() == [0, 0]


def test_a_new_object_that_cannot_be_copied_passes_with_its_new_parts():
    made = pass_gate(lambda: Own(a=np.arange(2), steps=(n for n in range(3)), lock=threading.Lock()))
    assert list(made.steps) == [0, 1, 2] and made.a.tolist() == [0, 1]


@pytest.mark.parametrize("make", [lambda x: x, lambda x: Own(x=x, lock=threading.Lock())], ids=["alone", "inside"])
@pytest.mark.parametrize("kept", [Slotted(1), Closed(a=1)], ids=["slots", "dict"])
def test_an_object_that_something_keeps_and_that_cannot_be_copied_is_named(make, kept):
    with pytest.raises(TypeError, match=rf"object of class {__name__}.{type(kept).__name__}, to which something else"):
        pass_gate(lambda: make(kept))


class Same(dict[str, Any]):
    """A dict that says it need not be copied."""

    def __copy__(self) -> Same:
        return self


def test_a_dict_whose_copy_is_itself_is_copied():
    kept = Same(a=np.zeros(2))
    made = pass_gate(lambda: kept)
    made["b"] = 1
    made["a"] += 1
    assert type(made) is Same and list(kept) == ["a"] and kept["a"].tolist() == [0, 0]


class Attributes(dict[str, Any]):
    """A dict whose entries are its attributes."""

    def __init__(self, **entries: Any):
        super().__init__(entries)
        self.__dict__ = self


class Twofold(dict[str, Any]):
    """A dict that has each entry as an attribute, too."""

    def __init__(self, **entries: Any):
        for name, value in entries.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        super().__setitem__(name, value)


@pytest.mark.parametrize("kind", [Attributes, Twofold])
@pytest.mark.parametrize("sent", [False, True])
def test_entries_that_are_attributes_stay_so(kind, sent):
    kept = kind(a=np.zeros(2), n=1)
    made = pass_gate(lambda: pickle.loads(pickle.dumps(kept)) if sent else kept, received=sent)
    made.a += 1
    made.n = 5
    assert (made["a"].tolist(), made["n"]) == ([1, 1], 5)
    assert (kept["a"].tolist(), kept["n"], kept.a.tolist()) == ([0, 0], 1, [0, 0])


def test_an_entry_that_is_also_an_attribute_is_one_object():
    kept = collections.OrderedDict(a=np.zeros(2), b=np.ones(2))
    kept.a = kept["a"]  # type: ignore[attr-defined]
    made = pass_gate(lambda: kept)
    assert made.a is made["a"] is not kept["a"]


def test_a_copy_has_nothing_twice():
    tokens = np.zeros(3)
    pair = (tokens, [tokens])
    image = Image.new("L", (2, 2))
    kept = Own(
        a=tokens, b=tokens[:2], c=pair, d=pair, e=types.SimpleNamespace(x=tokens), f=collections.deque([tokens]),
        error=ValueError(tokens, tokens),
    )  # fmt: skip
    made = pass_gate(lambda: kept)
    leaves = [made.a, made.b, *(part for x in (made.c, made.d) for part in (x[0], *x[1])), made.e.x, *made.f]
    leaves += made.error.args
    assert not any(np.shares_memory(one, other) for n, one in enumerate([tokens, *leaves]) for other in leaves[n:])
    for leaf in (image, io.BytesIO(b"a"), bytearray(b"a"), array.array("i", [1]), {1}, {"a": 1}, [1]):
        made = pass_gate(lambda leaf=leaf: Own(a=leaf, b=leaf))
        assert made.a is not made.b


def test_parts_that_point_at_each_other_still_do():
    node = Own(values=np.zeros(2))
    node.me, node.children = node, [Own(parent=node)]
    made = pass_gate(lambda: Own(nodes=[node], edge=node))
    assert made.nodes[0] is made.edge is made.edge.me is made.edge.children[0].parent is not node
    circle: list[Any] = []
    circle.append(circle)
    made = pass_gate(lambda: Own(a=circle))
    assert made.a[0] is made.a is not circle


def test_masked_arrays_have_a_fill_value_of_their_own():
    kept = np.ma.masked_array([1.0, 2.0], [False, True], fill_value=9.0)
    kept.harden_mask()
    made = pass_gate(lambda: kept)
    made.fill_value = 5.0
    made[0] = 7
    assert (kept.fill_value, kept[0], made.hardmask, made.mask.tolist()) == (9.0, 1.0, True, [False, True])


def test_an_entry_of_a_masked_table_is_copied():
    table = np.ma.masked_array([(1, 2.0)], [(True, False)], dtype=[("x", int), ("y", float)])
    made = pass_gate(lambda: table[0])
    made["y"] = 5
    assert type(made) is type(table[0]) and table[0]["y"] == 2.0 and made["y"] == 5.0


def test_objects_in_a_table_are_private():
    kept = np.zeros(2, [("x", float), ("o", object)])
    kept["o"][:] = [np.zeros(2)] * 2
    for made in (pass_gate(lambda: kept), [pass_gate(lambda: kept[0]), pass_gate(lambda: kept[1])]):
        made[0]["o"][:] = 1
        assert made[1]["o"].tolist() == kept[0]["o"].tolist() == [0, 0]


@pytest.mark.parametrize("make", [lambda: {1}, lambda: array.array("i", [1]), lambda: io.BytesIO(b"a")])
def test_an_object_that_is_remembered_weakly_is_copied(make):
    remembered: list[weakref.ref[Any]] = []

    def make_and_remember() -> Any:
        made = make()
        remembered.append(weakref.ref(made))
        return made

    made = pass_gate(make_and_remember)
    assert remembered[0]() is not made
