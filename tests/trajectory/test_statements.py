"""Statements: what each one means, and that no list of them fails in another way than with a sentence."""

import copy
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.standardization_steps import (
    _FROM_TREE,
    _STATEMENTS,
    OPERATIONS,
    StatementError,
    Statements,
    convert_matrices,
    convert_quaternions,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "oxe.md"


def trajectory():
    return {
        "observation": {
            "state": np.arange(12, dtype=np.float32).reshape(4, 3),
            "image": {"left": np.array([b"l"] * 4, object), "right": np.array([b"r"] * 4, object)},
            "words": np.array([[104, 105, 0, 7], [0, 1, 2, 3], [233, 0, 0, 0], [0xD800, -1, 65, 66]], np.int32),
            "packed": np.array([zlib.compress(np.float32([n, -n]).tobytes()) for n in range(4)], object),
            "open": np.array([True, False, True, False]),
            "count": np.arange(4),
        },
        "action": np.array([[0.0, 2.0], [0.5, -1.0], [0.97, 0.5], [0.5, 0.0]], np.float32),
    }


def run(*statements):
    return Statements(statements)(trajectory())


def value(expression):
    return run(["set", "out", expression])["out"]


STATE = "observation|state"


def test_each_expression_gives_what_numpy_gives():
    state = trajectory()["observation"]["state"]
    cases = [
        (["cols", STATE, 1, None], state[:, 1:]),
        (["cols", STATE, 2, 9], state[:, 2:]),
        (["col", STATE, -1], state[:, -1]),
        (["column", ["col", STATE, 0]], state[:, :1]),
        (["part", STATE, 1, None, 2], state[1::2]),
        (["concat", STATE, ["ones", STATE]], np.concatenate([state, np.ones_like(state)], axis=1)),
        (["zeros", STATE], np.zeros_like(state)),
        (["float32", "observation|open"], np.float32([1, 0, 1, 0])),
        (["clip01", STATE], np.clip(state, 0, 1)),
        (["invert", STATE], 1 - state),
        (["div", STATE, 4], state / 4),
        (["diff", STATE], state[1:] - state[:-1]),
        (["binarize", ["col", "action", 0]], np.float32([0, 1, 1, 0.5])),
        (["rel2abs", ["col", "action", 1]], np.float32([0, 1, 0, 0])),
        (["zero_state", 2], np.zeros((4, 2), np.float32)),
        (["inflate", "observation|packed", 2], np.float32([[n, -n] for n in range(4)])),
        (["inflate", STATE, 3], state),
        (["either", "observation|none", STATE, "action"], state),
    ]
    for expression, expected in cases:
        ours = value(expression)
        assert ours.dtype == expected.dtype, expression
        np.testing.assert_array_equal(ours, expected, err_msg=str(expression))
    assert {expression[0] for expression, _ in cases} | {"blank", "utf8", "euler", "ones"} == {*OPERATIONS, *_FROM_TREE}
    assert value(["blank", "observation|image|left"]).tolist() == [b""] * 4
    assert value(["utf8", "observation|words"]).tolist() == [
        b"hi",
        b"",
        "é".encode(),
        "\ufffd\ufffdAB".encode(),
    ]


def test_each_statement_changes_the_trajectory_as_it_says():
    ours = run(["set", "observation|image", "action"])  # a subtree that stood there is gone
    assert ours["observation"]["image"] is not trajectory()["observation"]["image"]
    np.testing.assert_array_equal(ours["observation"]["image"], trajectory()["action"])
    assert sorted(run(["move", "action", "command|arm"])) == ["command", "observation"]
    cut = run(["rows", None, None, 2, ["observation|image"]])
    assert {path: len(leaf) for path, leaf in flatten_tree(cut).items() if len(leaf) == 4} == {
        ("observation", "image", "left"): 4,
        ("observation", "image", "right"): 4,
    }
    assert len(run(["rows", 1, None, None])["action"]) == 3
    assert sorted(run(["only", "observation", ["state", "image"]])["observation"]) == ["image", "state"]
    lifted = run(["lift", "observation|image"])["observation"]
    assert {"left", "right"} < set(lifted) and "image" not in lifted


def test_a_swap_depends_on_the_trajectory_alone():
    swap = Statements([["maybe_swap", "observation|image|left", "observation|image|right"]])
    outcomes = []
    for number in range(64):
        one = {**trajectory(), "action": np.full((4, 2), number, np.float32)}
        images = [swap(one)["observation"]["image"]["left"][0] for _ in range(2)]
        assert images[0] == images[1]
        outcomes.append(images[0])
    assert 16 < outcomes.count(b"r") < 48


def test_what_is_wrong_is_told():
    def told(words, *statements):
        with pytest.raises(ValueError, match=re.escape(words)):
            run(*statements)

    told("has no statement 'sett'. Did you mean 'set'?", ["sett", "a", "action"])
    told("has no operation 'invrt'. Did you mean 'invert'?", ["set", "a", ["invrt", "action"]])
    told('["set", "a"] has 1 arguments; set needs 2', ["set", "a"])
    told('["cols", "action", 1] has 2 arguments; cols needs 3', ["set", "a", ["cols", "action", 1]])
    told(
        '\'1\' in ["cols", "action", "1", null] must be an integer or null', ["set", "a", ["cols", "action", "1", None]]
    )
    told("must be a path: keys with '|' between them", ["set", "a||b", "action"])
    told("each statement must be a list that begins with its name, got 'set'", "set")
    told("an expression is a path or a list, got 3", ["set", "a", 3])
    told("There is no 'observation|pose': 'observation' has count, image, open,", ["set", "a", "observation|pose"])
    told("There is no 'action|arm': 'action' is an array.", ["set", "a", "action|arm"])
    told("'observation' is a dict with count, image", ["set", "a", ["invert", "observation"]])
    told("dtypes float32, int64 are not joined.", ["set", "a", ["concat", ["col", STATE, 0], "observation|count"]])
    told("shapes (4, 2), (3, 3) cannot be joined", ["set", "a", ["concat", "action", ["diff", STATE]]])
    told("The compressed data have 2 numbers, but should have 3.", ["set", "a", ["inflate", "observation|packed", 3]])
    told("index 5 is out of bounds", ["set", "a", ["col", "action", 5]])
    told("No step is left", ["rows", 9, None, None], ["set", "a", ["binarize", ["col", "action", 0]]])
    told("'action' is an array, but entries below it are needed", ["lift", "action"])
    told("There is no 'observation|none'", ["only", "observation", ["none"]])
    told('0 in ["div", "action", 0] must be a number', ["set", "a", ["div", "action", 0]])


def test_the_page_has_every_word():
    page = PAGE.read_text(encoding="utf-8")
    for name in (*_STATEMENTS, *OPERATIONS, *_FROM_TREE):
        assert f'`["{name}"' in page, name


PATHS = st.sampled_from(["action", STATE, "observation", "observation|image", "observation|image|left", "none", "a|b"])
PATHS |= st.sampled_from(["observation|words", "observation|packed", "observation|open", "observation|count", ""])
CONSTANTS = st.none() | st.integers(-5, 5) | st.floats() | st.booleans() | st.just("x")
NAMES = st.sampled_from([*_STATEMENTS, *OPERATIONS, *_FROM_TREE, "no", 3])


def any_of(inner):
    """An operation with as many arguments as it needs, of any kind."""
    known = sorted(OPERATIONS)

    def build(drawn):
        name, expressions, constants = drawn
        operation = OPERATIONS[name]
        count = 2 if operation.expressions < 0 else operation.expressions
        return [name, *expressions[:count], *constants[: len(operation.others)]]

    return st.tuples(
        st.sampled_from(known), st.lists(inner, min_size=2, max_size=2), st.lists(CONSTANTS, min_size=3, max_size=3)
    ).map(build)


EXPRESSIONS = st.recursive(
    PATHS, lambda inner: st.tuples(NAMES, inner, inner | CONSTANTS, CONSTANTS).map(list) | any_of(inner), max_leaves=6
)
SETS = st.tuples(st.just("set"), PATHS, EXPRESSIONS).map(list)
LISTS = st.lists(SETS | st.tuples(NAMES, PATHS, PATHS | CONSTANTS).map(list) | CONSTANTS, max_size=3)


@settings(deadline=None, max_examples=300)
@given(LISTS)
def test_any_statements_give_a_trajectory_or_a_sentence(statements):
    given_one = trajectory()
    before = copy.deepcopy(given_one)
    try:
        standardize = Statements(statements)
    except ValueError:
        return
    try:
        ours = standardize(given_one)
    except StatementError as error:
        assert "fails at [" in str(error)
    else:
        assert isinstance(ours, dict)
    for path, leaf in flatten_tree(before).items():
        np.testing.assert_array_equal(flatten_tree(given_one)[path], leaf)


# Rotations.


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1.4, 1.4), min_size=3, max_size=3))
def test_angles_come_back_from_matrices_and_quaternions(angles):
    def turn(axis, angle):
        c, s = np.cos(angle), np.sin(angle)
        i, j = [k for k in range(3) if k != axis]
        matrix = np.eye(3)
        matrix[i, i] = matrix[j, j] = c
        matrix[i, j], matrix[j, i] = (s, -s) if axis == 1 else (-s, s)
        return matrix

    def multiply(p, q):
        (px, py, pz, pw), (qx, qy, qz, qw) = p, q
        return (
            pw * qx + px * qw + py * qz - pz * qy,
            pw * qy - px * qz + py * qw + pz * qx,
            pw * qz + px * qy - py * qx + pz * qw,
            pw * qw - px * qx - py * qy - pz * qz,
        )

    matrix = turn(2, angles[2]) @ turn(1, angles[1]) @ turn(0, angles[0])
    np.testing.assert_allclose(convert_matrices(matrix[None])[0], angles, atol=1e-7)
    x, y, z = ([*np.sin(a / 2) * np.eye(3)[axis], np.cos(a / 2)] for axis, a in enumerate(angles))
    quaternion = np.array(multiply(multiply(z, y), x))
    np.testing.assert_allclose(convert_quaternions(quaternion[None])[0], angles, atol=1e-7)
