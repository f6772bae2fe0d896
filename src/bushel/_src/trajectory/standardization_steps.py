"""Statements: how a trajectory changes into the standard layout, as plain data that a JSON or YAML file can hold.

`docs/oxe.md` explains the vocabulary. The operations on arrays come first; they use NumPy only.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base.errors import BushelError
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import paths
from bushel._src.sources.decompression import decompress_zlib
from bushel._src.trajectory.config_values import Function, identify_function, load_function, refuse_unknown
from bushel._src.trajectory.data_utils import Tree, binarize_gripper_actions, rel2abs_gripper_actions, to_objects

_POLE = 1e-6
_STRAIGHT = 1e-7


def convert_quaternions(quaternions: np.ndarray) -> np.ndarray:
    """Return the angles of quaternions (x, y, z, w), by the formulas of tensorflow_graphics.

    They scale each product by 1 - 2 eps, which keeps it in the domain of asin: 90 degrees is 1.5707959 in float32. The
    quaternions are not normalised, and those that are too long give nan.

    >>> convert_quaternions(np.array([[0.0, 0.0, 0.6, 0.8]])).round(3).tolist()
    [[0.0, 0.0, 1.287]]
    """
    values = np.asarray(quaternions)
    dtype = values.dtype.type
    margin = dtype(2 * np.finfo(values.dtype).eps)
    scale = dtype(1) - margin
    x, y, z, w = (values[..., axis] for axis in range(4))
    tx, ty, tz = (scale * (2 * part) for part in (x, y, z))
    r00, r22 = scale * (1 - (ty * y + tz * z)), scale * (1 - (tx * x + ty * y))
    r01, r10 = scale * (ty * x - tz * w), scale * (ty * x + tz * w)
    r02, r20 = scale * (tz * x + ty * w), scale * (tz * x - ty * w)
    r21 = scale * (tz * y + tx * w)

    def shift(entry: np.ndarray) -> np.ndarray:
        return entry + margin * _get_sign(entry)

    with np.errstate(invalid="ignore"):
        ry = -np.arcsin(r20)
        sign = _get_sign(np.cos(ry))
        general = np.arctan2(sign * r21, sign * shift(r22)), ry, np.arctan2(sign * r10, sign * shift(r00))
        turn = -_get_sign(r20)
        at_pole = np.arctan2(turn * r01, turn * shift(r02)), turn * dtype(np.pi / 2), np.zeros_like(ry)
        is_pole = np.abs(np.abs(r20) - 1) < _POLE
    return np.where(is_pole[..., None], np.stack(at_pole, axis=-1), np.stack(general, axis=-1)) + dtype(0)


def _get_sign(values: np.ndarray) -> np.ndarray:
    """1 for zero and above, -1 for all others, also for nan."""
    return np.where(values >= 0, 1, -1).astype(values.dtype)


def convert_matrices(matrices: np.ndarray) -> np.ndarray:
    """Return the angles of rotation matrices [T, 3, 3], by the formulas of scipy's and JAX's `Rotation`: by
    quaternions.

    >>> convert_matrices(np.array([[[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]])).round(3).tolist()
    [[0.0, 0.0, 0.644]]
    """
    x, y, z, w = np.moveaxis(_find_quaternions(np.asarray(matrices)), -1, 0)
    half_sum, half_difference = np.arctan2(x + z, w - y), np.arctan2(z - x, y + w)
    middle = 2 * np.arctan2(np.hypot(y + w, z - x), np.hypot(w - y, x + z))
    dtype = middle.dtype.type
    # Where the first and the third axis coincide, only the sum of their angles is known: the third is 0.
    down, up = np.abs(middle) <= dtype(_STRAIGHT), np.abs(middle - dtype(np.pi)) <= dtype(_STRAIGHT)
    first = np.where(down, 2 * half_sum, np.where(up, -2 * half_difference, half_sum - half_difference))
    third = np.where(down | up, 0, half_sum + half_difference)
    angles = np.stack([first, middle - dtype(np.pi / 2), third], axis=-1).astype(dtype)
    turn = dtype(2 * np.pi)
    return np.where(angles < -np.pi, angles + turn, np.where(angles > np.pi, angles - turn, angles)) + dtype(0)


def _find_quaternions(matrices: np.ndarray) -> np.ndarray:
    """Return unit quaternions (x, y, z, w).

    The largest of the four numbers is computed first, which avoids small divisors.
    """
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    trace = diagonal.sum(axis=-1)
    largest = np.concatenate([diagonal, trace[..., None]], axis=-1).argmax(axis=-1)
    quaternions = np.empty((len(matrices), 4), matrices.dtype)
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        rows = largest == i
        m = matrices[rows]
        quaternions[rows, i] = 1 - trace[rows] + 2 * m[:, i, i]
        quaternions[rows, j] = m[:, j, i] + m[:, i, j]
        quaternions[rows, k] = m[:, k, i] + m[:, i, k]
        quaternions[rows, 3] = m[:, k, j] - m[:, j, k]
    rows = largest == 3
    m = matrices[rows]
    parts = m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1], 1 + trace[rows]
    quaternions[rows] = np.stack(parts, axis=-1)
    return quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)


ALL = -1


@dataclasses.dataclass(frozen=True)
class StepOperation:
    """A function of arrays and constants.

    Attributes:
      run: the function.
      expressions: how many of its arguments are arrays; `ALL` for any number.
      others: the kinds of the arguments after them, one letter each: bound, integer, number of columns, divisor.
    """

    run: Callable[..., Any]
    expressions: int = 1
    others: str = ""


def _concatenate(*parts: np.ndarray) -> np.ndarray:
    """Return arrays joined along the last axis. Nothing is promoted: in the originals arrays of two dtypes fail."""
    dtypes, rows = {part.dtype.name for part in parts}, {len(part) for part in parts}
    if len(dtypes) > 1:
        raise ValueError(
            f"Arrays of the dtypes {', '.join(part.dtype.name for part in parts)} are not joined. "
            'Cast them with ["float32", x].'
        )
    if len(rows) > 1 or len({part.ndim for part in parts}) > 1:
        raise ValueError(f"Arrays of the shapes {', '.join(str(part.shape) for part in parts)} cannot be joined.")
    return np.concatenate(parts, axis=-1)


def _binarize(positions: np.ndarray) -> np.ndarray:
    if not len(positions):
        raise ValueError(
            "No step is left, so the gripper has no last state. ignore_errors=True leaves such trajectories out."
        )
    return binarize_gripper_actions(positions)


def _blank(texts: np.ndarray) -> np.ndarray:
    return np.full(texts.shape, b"", object)


def _decode_code_points(rows: np.ndarray) -> np.ndarray:
    """Return rows of Unicode code points as UTF-8 texts, up to the first 0.

    Numbers that are no code point become U+FFFD.
    """
    texts = []
    for row in np.atleast_2d(rows).tolist():
        points = row[: row.index(0)] if 0 in row else row
        valid = (point if 0 < point <= 0x10FFFF and not 0xD800 <= point < 0xE000 else 0xFFFD for point in points)
        texts.append("".join(map(chr, valid)).encode())
    return to_objects(texts)


def _inflate(values: np.ndarray, width: int) -> np.ndarray:
    """Return rows of float32 from zlib data. Numbers, which a reader has decompressed already, stay as they are."""
    if values.dtype.kind not in "OS":
        return values.reshape(len(values), width)
    rows = [np.frombuffer(decompress_zlib(bytes(value)), "<f4") for value in values.tolist()]
    for row in rows:
        if len(row) != width:
            raise ValueError(f"The compressed data have {len(row)} numbers, but should have {width}.")
    return np.stack(rows).astype(np.float32) if rows else np.zeros((0, width), np.float32)


OPERATIONS = {
    "cols": StepOperation(lambda x, begin, end: x[..., begin:end], others="bb"),
    "col": StepOperation(lambda x, index: x[..., index], others="i"),
    "column": StepOperation(lambda x: x[..., None]),
    "part": StepOperation(lambda x, begin, end, step: x[begin:end:step], others="bbb"),
    "concat": StepOperation(_concatenate, ALL),
    "zeros": StepOperation(np.zeros_like),
    "ones": StepOperation(np.ones_like),
    "float32": StepOperation(lambda x: x.astype(np.float32)),
    "clip01": StepOperation(lambda x: np.clip(x, 0, 1)),
    "invert": StepOperation(lambda x: 1 - x),
    "div": StepOperation(lambda x, divisor: x / divisor, others="d"),
    "diff": StepOperation(lambda x: x[1:] - x[:-1]),
    "binarize": StepOperation(_binarize),
    "rel2abs": StepOperation(rel2abs_gripper_actions),
    "euler": StepOperation(convert_quaternions),
    "blank": StepOperation(_blank),
    "utf8": StepOperation(_decode_code_points),
    "inflate": StepOperation(_inflate, others="n"),
}
"""The operations by name. `docs/oxe.md` has the table of their meanings."""


SEPARATOR = "|"
"""Between the keys of a path. Keys of data sets contain "/" and "." themselves."""


@in_states("Statements")
@dataclasses.dataclass(frozen=True)
class Statements:
    """A `standardize_fn` as data: statements that run in order on a trajectory.

    >>> close = ["invert", ["clip01", ["cols", "action", -1, None]]]
    >>> standardize = Statements([["set", "action", ["concat", ["cols", "action", None, 2], close]]])
    >>> standardize({"action": np.array([[0.5, -0.5, 1.5]])})["action"].tolist()
    [[0.5, -0.5, 0.0]]

    Args:
      statements: lists such as ["set", path, expression].
      name: what errors call it.
    """

    statements: Sequence[Any]
    name: str = "standardize_fn"

    def __post_init__(self) -> None:
        object.__setattr__(self, "statements", _freeze(self.statements))
        if not isinstance(self.statements, tuple):
            raise ValueError(f"{self.name} must be a list of statements, got {self.statements!r}.")
        for statement in self.statements:
            _check_statement(statement, self.name)

    def __call__(self, trajectory: Mapping[str, Any]) -> Tree:
        """Return the changed trajectory. The given one stays as it is."""
        tree = _copy(trajectory)
        for statement in self.statements:
            name, *arguments = statement
            try:
                _STATEMENTS[name].run(tree, *arguments)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error) as error:
                sentence = str(error) if str(error).endswith(".") else f"{error}."  # NumPy's errors have no full stop
                raise StatementError(f"{self.name} fails at {_show(statement)}: {sentence}") from error
        return tree


def load_standardization(standardize_fn: Function | Sequence[Any]) -> Callable[[Tree], Tree]:
    """Return a `standardize_fn` as a callable: a function, what names one, or a list of statements.

    >>> load_standardization([["move", "command", "action"]])({"command": 1})
    {'action': 1}
    """
    return load_function(_as_function(standardize_fn))


def identify_standardization(standardize_fn: Function | Sequence[Any]) -> str:
    """Return a text that differs for functions that differ, and for statements that differ."""
    return identify_function(_as_function(standardize_fn))


def _as_function(standardize_fn: Function | Sequence[Any]) -> Function:
    if isinstance(standardize_fn, str) or callable(standardize_fn) or isinstance(standardize_fn, Mapping):
        return standardize_fn
    return Statements(standardize_fn)


def read_standardization(text: str) -> str | list[Any]:
    """Return what a command names: "module:function", or the name of a JSON file with a list of statements."""
    if not text.endswith(".json"):
        return text
    with open(paths.expand_path(text), encoding="utf-8") as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise ValueError(f"{text} is not a JSON file with a list of statements: {error}") from error


# Paths.


@public("bushel.trajectory")
class StatementError(BushelError, ValueError):
    """A trajectory cannot be standardised. Whoever knows the data set adds its name."""


class _MissingEntry(StatementError):
    """A trajectory has no entry at a path that a statement reads."""


def get_path(tree: Mapping[str, Any], path: str) -> Any:
    """Return the entry at a path such as "observation|state". A missing entry raises _MissingEntry.

    >>> get_path({"observation": {"state": 1}}, "observation|state")
    1
    """
    inner: Any = tree
    above = ""
    for key in path.split(SEPARATOR):
        if not isinstance(inner, Mapping) or key not in inner:
            has = f"has {', '.join(sorted(inner))}" if isinstance(inner, Mapping) else "is an array"
            raise _MissingEntry(f"There is no {path!r}: {repr(above) if above else 'the trajectory'} {has}.")
        inner, above = inner[key], f"{above}{SEPARATOR}{key}" if above else key
    return inner


def _find_parent(tree: Tree, path: str, create: bool = False) -> tuple[Tree, str]:
    """Return the dict that holds, or will hold, the entry at a path; and its key there."""
    *above, key = path.split(SEPARATOR)
    inner = tree
    for name in above:
        below = inner.get(name)
        if not isinstance(below, dict):
            if not create:
                get_path(tree, path)
            below = inner[name] = {}
        inner = below
    return inner, key


def _get_array(tree: Tree, path: str) -> np.ndarray:
    value = get_path(tree, path)
    if isinstance(value, Mapping):
        raise ValueError(f"{path!r} is a dict with {', '.join(sorted(value))}, but an array is needed.")
    return np.asarray(value)


# Expressions.


def _evaluate(tree: Tree, expression: Any) -> Any:
    if isinstance(expression, str):
        return _get_array(tree, expression)
    name, *arguments = expression
    if name in _FROM_TREE:
        return _FROM_TREE[name](tree, *arguments)
    operation = OPERATIONS[name]
    count = len(arguments) if operation.expressions == ALL else operation.expressions
    values = [_evaluate(tree, argument) for argument in arguments[:count]]
    return operation.run(*values, *arguments[count:])


def _make_zero_state(tree: Tree, width: int) -> np.ndarray:
    return np.zeros((len(_get_array(tree, "action")), width), np.float32)


def _choose_existing(tree: Tree, *expressions: Any) -> Any:
    for number, expression in enumerate(expressions):
        try:
            return _evaluate(tree, expression)
        except _MissingEntry:
            if number == len(expressions) - 1:
                raise
    raise ValueError("There is nothing to choose from.")


_FROM_TREE: dict[str, Callable[..., Any]] = {"zero_state": _make_zero_state, "either": _choose_existing}
"""Expressions that read the tree, not only the values of their arguments."""


# Statements.


def _set(tree: Tree, path: str, expression: Any) -> None:
    value = _evaluate(tree, expression)
    parent, key = _find_parent(tree, path, create=True)
    parent[key] = value


def _move(tree: Tree, path: str, target: str) -> None:
    value = get_path(tree, path)
    parent, key = _find_parent(tree, path)
    del parent[key]
    parent, key = _find_parent(tree, target, create=True)
    parent[key] = value


def _cut_rows(tree: Tree, begin: int | None, end: int | None, step: int | None, excepted: Sequence[str] = ()) -> None:
    def cut(inner: Tree, above: str) -> None:
        for key, value in inner.items():
            path = f"{above}{key}"
            if path in excepted:
                continue
            if isinstance(value, dict):
                cut(value, path + SEPARATOR)
            else:
                inner[key] = np.asarray(value)[begin:end:step]

    cut(tree, "")


def _keep_only(tree: Tree, path: str, names: Sequence[str]) -> None:
    inner = _get_dict(tree, path)
    for name in names:
        get_path(tree, f"{path}{SEPARATOR}{name}")
    for key in set(inner) - set(names):
        del inner[key]


def _lift(tree: Tree, path: str) -> None:
    children = _get_dict(tree, path)
    parent, key = _find_parent(tree, path)
    del parent[key]
    parent.update(children)


def _swap_sometimes(tree: Tree, path: str, other: str) -> None:
    """Exchange two entries in half of the trajectories. A digest of the action decides.

    The original draws anew whenever it reads a trajectory. Here the result is kept for all epochs, so the draw must not
    depend on the process or on the order in which trajectories are read.
    """
    first, second = get_path(tree, path), get_path(tree, other)
    action = np.ascontiguousarray(_get_array(tree, "action"))
    if zlib.crc32(action.tobytes()) & 1:
        for place, value in ((path, second), (other, first)):
            parent, key = _find_parent(tree, place)
            parent[key] = value


def _get_dict(tree: Tree, path: str) -> Tree:
    inner = get_path(tree, path)
    if not isinstance(inner, dict):
        raise ValueError(f"{path!r} is an array, but entries below it are needed.")
    return inner


@dataclasses.dataclass(frozen=True)
class _Statement:
    run: Callable[..., None]
    arguments: str
    """One letter for each argument: path, expression x, bound, list of names l. Those after a "?" may be left out."""


_STATEMENTS = {
    "set": _Statement(_set, "px"),
    "move": _Statement(_move, "pp"),
    "rows": _Statement(_cut_rows, "bbb?l"),
    "only": _Statement(_keep_only, "pl"),
    "lift": _Statement(_lift, "p"),
    "maybe_swap": _Statement(_swap_sometimes, "pp"),
}


# Checks, before any trajectory is read.


def _check_statement(statement: Any, owner: str) -> None:
    known = _STATEMENTS.get(_get_name(statement, owner, _STATEMENTS, "statement"))
    assert known is not None
    needed, _, optional = known.arguments.partition("?")
    given = statement[1:]
    if not len(needed) <= len(given) <= len(needed + optional):
        raise ValueError(f"{owner}: {_show(statement)} has {len(given)} arguments; {statement[0]} needs {len(needed)}.")
    for kind, argument in zip(needed + optional, given):
        if kind == "x":
            _check_expression(argument, owner)
        elif not _KINDS[kind][0](argument):
            raise ValueError(f"{owner}: {argument!r} in {_show(statement)} must be {_KINDS[kind][1]}.")


def _check_expression(expression: Any, owner: str) -> None:
    if _is_path(expression):
        return
    if not isinstance(expression, tuple):
        raise ValueError(f"{owner}: an expression is a path or a list, got {expression!r}.")
    names = [*OPERATIONS, *_FROM_TREE]
    name = _get_name(expression, owner, names, "operation")
    arguments = expression[1:]
    if name == "zero_state":
        kinds = "n"
    elif name == "either" or OPERATIONS[name].expressions == ALL:
        kinds = "x" * max(len(arguments), 1)
    else:
        kinds = "x" * OPERATIONS[name].expressions + OPERATIONS[name].others
    if len(arguments) != len(kinds):
        raise ValueError(f"{owner}: {_show(expression)} has {len(arguments)} arguments; {name} needs {len(kinds)}.")
    for kind, argument in zip(kinds, arguments):
        if kind == "x":
            _check_expression(argument, owner)
        elif not _KINDS[kind][0](argument):
            raise ValueError(f"{owner}: {argument!r} in {_show(expression)} must be {_KINDS[kind][1]}.")


def _get_name(given: Any, owner: str, known: Mapping[str, Any] | Sequence[str], what: str) -> str:
    """Return the first element of a statement or an expression, after a check that there is one of this name."""
    if not isinstance(given, tuple) or not given:
        raise ValueError(f"{owner}: each {what} must be a list that begins with its name, got {given!r}.")
    refuse_unknown([given[0]], known, owner, what)
    return given[0]


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and all(value.split(SEPARATOR))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "p": (_is_path, f"a path: keys with {SEPARATOR!r} between them"),
    "b": (lambda value: value is None or _is_integer(value), "an integer or null"),
    "i": (_is_integer, "an integer"),
    "n": (lambda value: _is_integer(value) and value > 0, "a positive integer"),
    "d": (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0, "a number"),
    "l": (lambda value: isinstance(value, tuple) and all(map(_is_path, value)), "a list of names"),
}


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _copy(tree: Mapping[str, Any]) -> Tree:
    """Return new dicts with the same arrays, so that statements do not change the trajectory of the caller."""
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _show(part: Any) -> str:
    """Return a statement or an expression as JSON writes it, shortened."""

    def write(value: Any) -> str:
        if isinstance(value, tuple):
            return f"[{', '.join(map(write, value))}]"
        return "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value)

    text = write(part)
    return text if len(text) <= 120 else f"{text[:117]}..."
