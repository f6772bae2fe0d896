"""The identity of a pipeline: a tree of names and digests, one per node.

Also the difference between two identities, and what an identity has seen, as a table: `bushel.explain_identity(ds)`.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import sys
from typing import Any, cast

import numpy as np

from bushel._src.base import shown_text
from bushel._src.base.code_inspection import is_users_code
from bushel._src.base.public import public
from bushel._src.base.state_names import find_name, name_of, rename_keys
from bushel._src.base.transforms import show_value
from bushel._src.graph.node import Node, skip_transparent
from bushel._src.graph.source_nodes import RecordStream, SourceNode
from bushel._src.graph.stream_ops import MixStream
from bushel._src.graph.user_datasets import Custom
from bushel._src.sources.user_sources import IterableStream, file_fingerprint
from bushel._src.state.digest import digest, examine
from bushel._src.state.digest_notes import Examination, Memo
from bushel._src.state.object_contents import attributes_of, describe, is_in_memory, is_iterator

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode differs between Python versions, so across versions functions are compared by name only."""

BY_KEY = "mix by key"
NODE_IDENTITY = "_own_identity"
"""The attribute of a node that keeps its part of the identity."""

_WHOLE = "_identity"
"""The attribute of a node that keeps the identity of the pipeline that ends with it, once it was asked for."""

_FULL_PART = "_full_identity"
"""The attribute of a source that keeps the digest of all its data."""

EXAMINED = "_examined"
"""The attribute of a node that keeps what its part of the identity has seen."""

_MOST_DETAILS, _MOST_LETTERS = 24, 48
"""A state names so many functions and values of a node, by so many letters each."""


def identify(node: Node) -> list[Any]:
    """Return what a node is, as plain data: [call, digest of parameters, digest of functions, [identities of parents]].

    After the digest of the functions come names with a short digest each, so that a message can say what has changed.
    """
    prepare(node)
    return _copy(vars(node)[_WHOLE])


def prepare(node: Node) -> None:
    """Find out the identity of a pipeline, unless that was done before. Call it before one of its functions runs."""
    if _WHOLE not in vars(node):
        vars(node)[_WHOLE] = _identify(node, Memo(), set())


def _copy(identity: list[Any]) -> list[Any]:
    """Return a copy for a state, which belongs to the user."""
    return [*identity[:3], [_copy(parent) for parent in identity[3]]]


def _identify(node: Node, memo: Memo, described: set[str]) -> list[Any]:
    node = skip_transparent(node)
    parents = [_identify(parent, memo, described) for parent in node.parents]
    if isinstance(node, MixStream) and node.keys is not None:
        # The weights and the parts of a mixture by key may change between runs: parts are compared by name.
        return [BY_KEY, BY_KEY, "", [[key, key, "", [part]] for key, part in zip(node.keys, parents, strict=True)]]
    call, parameters, functions = identify_node(node, memo)
    if functions in described:  # a thousand parts of a mixture may have the same functions: they are named once
        functions = functions.partition(_DETAIL)[0]
    described.add(functions)
    return [call, parameters, functions, parents]


def freeze(node: Node, memo: Memo | None = None) -> None:
    """Digest the functions of a pipeline, unless that was done before. Call it before one of them runs.

    A function may change what it closes over while it runs, and that is no part of an identity. A pipeline whose
    functions never run, and whose state nobody asks for, is never digested: building one is cheap.
    """
    if NODE_IDENTITY in vars(node):  # it was frozen before, and its parents before it
        return
    memo = memo or Memo()
    for parent in node.parents:
        freeze(parent, memo)
    # The data of a source, or of a file, do not change when they are read. Attributes of a user's own source may.
    keeps = (
        isinstance(node, SourceNode) and is_users_code(type(node.source)) and not hasattr(node.source, "fingerprint")
    )
    if keeps or not (isinstance(node, (SourceNode, RecordStream)) or node.transparent):
        identify_node(node, memo)


def identify_node(node: Node, memo: Memo | None = None) -> tuple[str, str, str]:
    """Return the part of the identity that is the node's own, found out once and kept."""
    known = vars(node).get(NODE_IDENTITY)
    if known is None:
        call, parameters, functions, examined = _identify_node(node, memo or Memo())
        vars(node)[EXAMINED] = examined
        known = vars(node)[NODE_IDENTITY] = call, parameters, functions
    return known


def identify_in_full(node: Node, *, trust_source: bool, method: str) -> str:
    """Return a digest of a pipeline for what is kept on disk: of its functions, and of all its data.

    Raises a ValueError for a source that does not say what its data are, unless `trust_source`.

    Args:
      node: the last operation.
      trust_source: the user says that the data of such a source do not change.
      method: what the user has called, for the message.
    """
    prepare(node)
    memo = Memo()
    return digest(PYTHON, _in_full(node, memo, trust_source, method))


def _in_full(node: Node, memo: Memo, trust_source: bool, method: str) -> list[Any]:
    node = skip_transparent(node)
    parents = [_in_full(parent, memo, trust_source, method) for parent in node.parents]
    _, parameters, functions = identify_node(node, memo)
    return [_data_in_full(node, parameters, memo, trust_source, method), functions.partition(_DETAIL)[0], parents]


def _data_in_full(node: Node, parameters: str, memo: Memo, trust_source: bool, method: str) -> str:
    if isinstance(node, (SourceNode, RecordStream)):
        subject = node.source
    elif node.users_class is not None and not node.parents:
        subject = cast(Custom, node).dataset
    else:
        return parameters
    found, problem = vars(node)[_FULL_PART] = examine_all_data(node, subject, memo)
    if problem and not trust_source:
        raise ValueError(
            f"{method} cannot know whether the data of {_describe_subject(node, subject)} are the same in a later run: "
            f"{problem}. Give the class a method `fingerprint(self)` that returns a small, plain value which changes "
            "with the data (for files, bushel.sources.file_fingerprint(paths)), or pass trust_source=True if the data "
            "never change."
        )
    return found.digest


def examine_all_data(node: Node, subject: Any, memo: Memo) -> tuple[Examination, str]:
    """Return what `examine_data` says of the data of a node, or has said when something was kept on disk."""
    known = vars(node).get(_FULL_PART)
    return examine_data(subject, memo=memo) if known is None else known


def _describe_subject(node: Node, subject: Any) -> str:
    if isinstance(node, RecordStream):
        return f"{node.name}({getattr(subject, 'name', type(subject).__name__)})"
    return f"the source {type(subject).__name__}" if isinstance(node, SourceNode) else type(subject).__name__


def _is_function(name: str, value: Any) -> bool:
    return callable(value) or name in ("transform", "selection_map")


def _identify_node(node: Node, memo: Memo) -> tuple[str, str, str, dict[str, Examination]]:
    """Return the call, the digests of parameters and functions, and what they have seen."""
    if isinstance(node, SourceNode):
        data = examine(fingerprint(node.source), sampled=True, memo=memo, name="data")
        code = _examine_code_of_source(node.source, memo)
        seen = {"data": data} if code is None else {"data": data, "code": code}
        return node.call(), data.digest, "" if code is None else _with_details({"source": code}), seen
    if isinstance(node, RecordStream):
        return _identify_records(node, memo)
    parameters: dict[str, Any] = {}
    functions: dict[str, Examination] = {}
    for name, value in rename_keys(type(node), node.parameters()).items():
        if _is_function(name, value):
            parameters[name] = _name_function(value)
            known = memo.functions.get(id(value))
            if known is None:
                known = memo.functions[id(value)] = examine(value, memo=memo)
                memo.kept.append(value)
            functions[name] = known
        else:
            parameters[name] = value
    if node.users_class is not None:
        functions["class"] = examine(node.users_class, memo=memo)
    is_users_source = node.users_class is not None and not node.parents
    values = examine(name_of(type(node)), parameters, memo=memo, sampled=is_users_source, name="parameters")
    if is_users_source and callable(find_fingerprint := getattr(cast(Custom, node).dataset, "fingerprint", None)):
        values = examine(name_of(type(node)), find_fingerprint(), memo=memo, name="fingerprint")
    return node.call(), values.digest, _with_details(functions), {**functions, "parameters": values}


def _identify_records(node: RecordStream, memo: Memo) -> tuple[str, str, str, dict[str, Examination]]:
    """Return the part of records that are read in order. What a user's function or iterable does counts as code."""
    seen: dict[str, Examination] = {}
    iterable = getattr(node.source, "iterable", None)
    attributes = _list_attributes(iterable) if iterable is not None and not callable(iterable) else []
    values = [name_of(type(node)), node.parameters(), *attributes]
    data = examine(*values, sampled=True, memo=memo, name="data")
    seen["data"] = data
    if callable(iterable):
        seen["code"] = examine(iterable, memo=memo)
    elif iterable is not None and is_users_code(type(iterable)):
        seen["code"] = examine(type(iterable), memo=memo)
    functions = {"source": seen["code"]} if "code" in seen else {}
    return node.call(), data.digest, _with_details(functions), seen


def _examine_code_of_source(source: Any, memo: Memo) -> Examination | None:
    """Return what the class of a user's own source does; None for a source of a library."""
    return examine(type(source), memo=memo) if is_users_code(type(source)) else None


def _name_function(value: Any) -> str:
    while not hasattr(value, "__qualname__") and callable(getattr(value, "func", None)):
        value = value.func  # of a partial
    return find_name(value) or getattr(value, "__qualname__", None) or name_of(type(value))


_DETAIL = ";"


def _with_details(functions: dict[str, Examination]) -> str:
    """Return the digest of the functions of a node, then the name and a short digest of each thing that they reach."""
    if not functions:
        return ""
    parts = [part for found in functions.values() for part in found.parts]
    whole = digest({name: found.digest for name, found in functions.items()})
    if len(parts) <= 1:
        return whole
    shown = [f"{part.name[:_MOST_LETTERS]}={part.digest[:6]}" for part in parts[:_MOST_DETAILS]]
    return _DETAIL.join([whole, *(text.replace(_DETAIL, ",") for text in shown)])


def _list_changes(saved: str, current: str) -> str:
    """Return what a message says of two digests of functions: the names of what has changed, as far as the state has
    them.
    """
    old, new = (
        dict(text.rsplit("=", 1) for text in functions.split(_DETAIL)[1:] if "=" in text)
        for functions in (saved, current)
    )
    if not old or not new:
        return ""
    changed = [f"`{name}` changed" for name in new if name in old and old[name] != new[name]]
    changed += [f"`{name}` is new" for name in new if name not in old]
    changed += [f"`{name}` is gone" for name in old if name not in new]
    return ", ".join(changed[:6]) + (", ..." if len(changed) > 6 else "")


def fingerprint(source: Any) -> Any:
    """Return what tells the data of a source from other data, without reading all of it."""
    find_fingerprint = getattr(source, "fingerprint", None)
    if callable(find_fingerprint):
        return [_name_source(source), find_fingerprint()]
    if isinstance(source, (list, tuple, dict, str, bytes, range, np.ndarray)):
        return source
    if is_in_memory(source):
        return [_name_source(source), source]
    known = [_name_source(source), len(source)]
    if is_hugging_face(source) and (values := _read_hugging_face(source, most_bytes=_SMALL_BYTES)) is not None:
        known.append(values)
    own_text = [] if type(source).__repr__ is object.__repr__ else [show_value(source)]
    paths = getattr(source, "paths", None)
    if not isinstance(paths, (str, list, tuple)):
        return known + own_text + _list_attributes(source)
    attributes = [{name: each for name, each in found.items() if name != "paths"} for found in _list_attributes(source)]
    return [*known, file_fingerprint(paths), *_without_folders([*own_text, *attributes], paths)]


def _name_source(source: Any) -> str:
    return find_name(type(source)) or type(source).__name__


def _list_attributes(source: Any) -> list[Any]:
    """Return the attributes of a source of the user's own that say what it gives.

    Handle may change while it is read.
    """
    if not is_users_code(type(source)):
        return []
    return [{name: _show_attribute(value) for name, value in attributes_of(source).items() if _is_said(value)}]


_OF_VALUES = {
    "argparse", "array", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools", "operator",
    "pathlib", "re", "types", "uuid",
}  # fmt: skip
"""Modules whose types hold values."""


def _is_said(value: Any) -> bool:
    """Return whether an attribute of a source counts: a value in memory, a function, or an object of the user's own."""
    kind = type(value)
    if value is None or is_iterator(value):  # None may be the place of a handle that is opened later
        return False
    return (
        kind.__module__.lstrip("_").partition(".")[0] in _OF_VALUES
        or is_users_code(kind)
        or is_in_memory(value)
        or callable(value)
        or callable(getattr(kind, "fingerprint", None))
        or _find_node(value) is not None
    )


def _show_attribute(value: Any) -> Any:
    """Return what stands for an attribute of a source: a source inside another one says itself what its data are."""
    if callable(getattr(type(value), "fingerprint", None)):
        return [type(value), value.fingerprint()]
    node = _find_node(value)
    return value if node is None else _without_calls(identify(node))


def _find_node(value: Any) -> Node | None:
    """Return the last operation of a dataset; None for anything else."""
    if not any(base.__module__.partition(".")[0] == "bushel" for base in type(value).__mro__):
        return None
    node = getattr(value, "_node", None)
    return node if isinstance(node, Node) and not hasattr(type(value), "__next__") else None


def _without_calls(identity: list[Any]) -> list[Any]:
    return [identity[1], identity[2].partition(_DETAIL)[0], [_without_calls(parent) for parent in identity[3]]]


def examine_data(subject: Any, *, memo: Memo) -> tuple[Examination, str]:
    """Return the digest of all data of a source, and why they cannot be known; an empty text if they can.

    They are known from a `fingerprint()`, from values in memory, and from a class of the user's own whose attributes
    are values in memory, if its code reads nothing else.
    """
    name = _name_source(subject)
    in_full = getattr(subject, "fingerprint_in_full", None)
    if isinstance(subject, IterableStream):
        return _examine_iterable(subject, memo)
    if callable(in_full):
        return examine(name, in_full(), memo=memo, name="data"), ""
    if callable(find_fingerprint := getattr(subject, "fingerprint", None)):
        return examine(name, find_fingerprint(), memo=memo, name="fingerprint"), ""
    if isinstance(subject, (list, tuple, dict, str, bytes, range, np.ndarray)):
        found = examine(subject, memo=memo, name="data")
        return found, _find_problem(found)
    if is_hugging_face(subject) and (table := _read_hugging_face(subject)) is not None:
        found = examine(name, table, memo=memo, name="data")
        return found, _find_problem(found)
    paths = getattr(subject, "paths", None)
    if isinstance(paths, (str, list, tuple)) and paths:
        versions = file_fingerprint(paths)
        if all(isinstance(version, list) for version in versions):
            return examine(fingerprint(subject), memo=memo, name="files"), ""
    # Taken apart here, so that what a dataset of one's own keeps for Bushel does not count.
    if is_in_memory(subject):
        found = examine(name, subject, memo=memo, name=name)
        return found, _find_problem(found)
    attributes = attributes_of(subject)
    users_class = type(subject) if is_users_code(type(subject)) else None
    found = examine(name, attributes, memo=memo, name=name, class_of=users_class)
    if not is_users_code(type(subject)):
        kind = type(subject)
        return found, f"{kind.__module__.partition('.')[0]}.{kind.__name__} has no fingerprint"
    return found, _find_problem(found)


def _examine_iterable(stream: IterableStream, memo: Memo) -> tuple[Examination, str]:
    iterable = stream.iterable
    if callable(iterable):
        found = examine("function", iterable, memo=memo, name=stream.name)
        return found, _find_problem(found)
    return examine_data(iterable, memo=memo)


def _find_problem(found: Examination) -> str:
    if found.unseen:
        name, what = next(iter(found.unseen.items()))
        return f"`{name}` cannot be compared ({what})"
    if found.outside:
        return f"its code may read more than its attributes ({', '.join(found.outside[:3])})"
    return ""


_SMALL_BYTES = 4 << 20


def is_hugging_face(source: Any) -> bool:
    """Return whether a source is a dataset of Hugging Face."""
    return type(source).__module__.partition(".")[0] == "datasets"


def _read_hugging_face(dataset: Any, most_bytes: int | None = None) -> Any:
    """Return the values of a Hugging Face dataset in memory, or the versions of its files; None if it is neither.

    With `most_bytes`, only the values of a table in memory that has no more.
    """
    try:
        if most_bytes is not None and (dataset.cache_files or dataset.data.nbytes > most_bytes):
            return None
        files = [entry["filename"] for entry in dataset.cache_files]
        form = [
            dataset.format["type"],
            dataset.format["columns"],
            dataset.format["format_kwargs"],
            dataset.format["output_all_columns"],
        ]
        indices = dataset._indices
        table = file_fingerprint(files) if files else dataset.data.table
        return [str(dataset.features), form, table, None if indices is None else indices.table]
    except (AttributeError, KeyError, TypeError):
        return None


def _without_folders(value: Any, paths: str | list[Any] | tuple[Any, ...]) -> Any:
    """Return what a source of files says of itself without the folders of the files: it stays the same when they
    move.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str) else paths)]
    found = {name: os.path.basename(name) for name in names if os.path.dirname(name)}
    found |= {os.path.dirname(name): "" for name in found}
    return _replace_texts(value, sorted(found.items(), key=lambda pair: len(pair[0]), reverse=True))


def _replace_texts(value: Any, pairs: list[tuple[str, str]]) -> Any:
    if type(value) is str:
        for text, instead in pairs:
            value = value.replace(text, instead)
    elif isinstance(value, pathlib.PurePath):
        return _replace_texts(str(value), pairs)
    elif type(value) in (list, tuple):
        return [_replace_texts(each, pairs) for each in value]
    elif type(value) is dict:
        return {_replace_texts(key, pairs): _replace_texts(each, pairs) for key, each in value.items()}
    return value


def list_differences(saved: Any, current: list[Any], *, same_python: bool) -> list[str]:
    """Return lines that say where a saved identity differs from the current one. An empty list if they are the same."""
    try:
        if saved == current:  # as a rule: a state is restored in the pipeline that wrote it
            return []
        readable = _well_formed(saved)
    except RecursionError:
        readable = False
    return _compare(saved, current, same_python) if readable else ["the identity in the state cannot be read"]


def _well_formed(saved: Any) -> bool:
    return (
        isinstance(saved, list)
        and len(saved) == 4
        and all(isinstance(entry, str) for entry in saved[:3])
        and isinstance(saved[3], list)
        and all(map(_well_formed, saved[3]))
    )


def _compare(saved: list[Any], current: list[Any], same_python: bool) -> list[str]:
    """Compare chains of operations line by line, and the branches above them one by one."""
    old, old_top = _chain(saved)
    new, new_top = _chain(current)
    old_keys = [_key(node, same_python) for node in old]
    new_keys = [_key(node, same_python) for node in new]
    lines: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        before, after = old[a:b], new[c:d]
        paired = tag == "replace" and len(before) == len(after)
        for was, now in zip(before, after, strict=True) if paired else ():
            if was[0] != now[0]:
                lines += [f"- {was[0]}", f"+ {now[0]}"]
            elif was[1] != now[1]:
                what = "other data" if was[0].startswith("source(") else "other parameters"
                lines.append(f"~ {now[0]}: same name, {what}")
            else:
                lines.append(f"~ {now[0]}: same name, other code")
                if changes := _list_changes(was[2], now[2]):
                    lines.append(f"    {changes}")
        if not paired:
            lines += [f"- {was[0]}" for was in before] + [f"+ {now[0]}" for now in after]
    if old[0][0] == new[0][0] == BY_KEY:
        kept = {now[0]: now for now in new_top}
        pairs = [(was, kept[was[0]]) for was in old_top if was[0] in kept]
        return lines + [f"{line}  (in part {was[0]})" for was, now in pairs for line in _compare(was, now, same_python)]
    for number, (was, now) in enumerate(zip(old_top, new_top, strict=False)):
        lines += [f"{line}  (in part {number})" for line in _compare(was, now, same_python)]
    lines += [f"- part {number}: {was[0]}" for number, was in enumerate(old_top) if number >= len(new_top)]
    lines += [f"+ part {number}: {now[0]}" for number, now in enumerate(new_top) if number >= len(old_top)]
    return lines


def _chain(node: list[Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return a run of nodes with one parent each, from the source side down, and the branches above it."""
    chain = [node]
    while len(chain[-1][3]) == 1 and chain[-1][0] != BY_KEY:
        chain.append(chain[-1][3][0])
    return chain[::-1], chain[-1][3]


def _key(node: list[Any], same_python: bool) -> tuple[str, ...]:
    """Return what must be equal for two nodes to be the same.

    The call does not count: a repr in it may hold an address.
    """
    return (node[1], node[2].partition(_DETAIL)[0]) if same_python else (node[1],)


def _describe_dataset(value: Any) -> Any:
    """Return what stands for a dataset, a node or a source that a function holds: its identity, or its fingerprint."""
    node = value if isinstance(value, Node) else _find_node(value)
    if node is not None:
        return _describe_node(node)
    name = find_name(type(value))
    find_fingerprint = None if name is None else getattr(value, "fingerprint", None)
    return [name, getattr(value, "fingerprint_in_full", find_fingerprint)()] if callable(find_fingerprint) else None


def _describe_node(node: Node) -> list[Any]:
    """Return a pipeline that a function holds is a parameter of it, so its data count in full."""
    prepare(node)
    return _in_full(node, Memo(), True, "")


describe.append(_describe_dataset)


_HEAD = ("operation", "what", "how", "digest")


@public("bushel")
@dataclasses.dataclass(frozen=True)
class IdentityPart:
    """One thing that an identity has seen, or could not see."""

    operation: str
    """The operation, as it reads in the pipeline."""
    what: str
    """A function, a class, a global, an attribute, the data, or a library."""
    how: str
    """How it counts: its code or value, in full, by samples, by fingerprint, by name, or not at all."""
    digest: str = ""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The cells of a table."""
        return self.operation, self.what, self.how, self.digest


@public("bushel")
@dataclasses.dataclass(frozen=True)
class IdentityExplanation:
    """What the identity of a pipeline has seen: what a state, a cache, a column and a saved folder depend on.

    Print it, or show it in a notebook.
    """

    parts: tuple[IdentityPart, ...]

    def __repr__(self) -> str:
        return shown_text.as_text(_HEAD, [part.row for part in self.parts], left=len(_HEAD))

    def _repr_html_(self) -> str:
        return shown_text.as_html(_HEAD, [part.row for part in self.parts])


@public("bushel")
def explain_identity(dataset: Any) -> IdentityExplanation:
    """Say what makes a pipeline the same one for a state, a cache, a column, or a folder that `save` continues.

    Per operation it lists the functions, classes, globals and attributes that its functions reach, the data and how
    they are compared, the libraries that count by name, and what could not be seen.

    Args:
      dataset: a MapDataset, an IterDataset, or an iterator of one.

    >>> from bushel import MapDataset
    >>> SCALE = 2
    >>> explanation = explain_identity(MapDataset.range(3).map(lambda x: x * SCALE))
    >>> [(part.what, part.how) for part in explanation.parts if part.operation.startswith("map")][1:]
    [('<lambda>', 'function'), ('SCALE', 'global')]
    """
    node = getattr(dataset, "_node", None)
    if not isinstance(node, Node):
        raise TypeError(f"explain_identity takes a MapDataset, an IterDataset or an iterator, got {dataset!r}.")
    prepare(node)
    parts: list[IdentityPart] = []
    _collect(node, parts, Memo(), set())
    return IdentityExplanation(tuple(parts))


def _collect(node: Node, parts: list[IdentityPart], memo: Memo, seen: set[int]) -> None:
    node = skip_transparent(node)
    if id(node) in seen:
        return
    seen.add(id(node))
    for parent in node.parents:
        _collect(parent, parts, memo, seen)
    call = node.call()
    _, parameters, _ = identify_node(node, memo)
    examined: dict[str, Examination] = vars(node)[EXAMINED]
    if isinstance(node, (SourceNode, RecordStream)) or (isinstance(node, Custom) and not node.parents):
        parts += _describe_data(call, node, examined, memo)
    else:
        parts.append(IdentityPart(call, "parameters", "all values", parameters[:6]))
    for name, found in examined.items():
        if name not in ("data", "parameters"):
            parts += _describe_code(call, found)


def _describe_data(call: str, node: Node, examined: dict[str, Examination], memo: Memo) -> list[IdentityPart]:
    """Return how a state compares the data of a source, and how a cache on disk does."""
    found = examined.get("data") or examined["parameters"]
    subject = node.source if isinstance(node, (SourceNode, RecordStream)) else getattr(node, "dataset", None)
    full, problem = examine_all_data(node, subject, memo)
    how = "in a state: samples" if found.sampled else "in a state: in full"
    given = subject.iterable if isinstance(subject, IterableStream) else subject
    if isinstance(subject, IterableStream) and callable(given):
        how = "the code of its function"
    elif callable(getattr(given, "fingerprint", None)) and not getattr(given, "in_memory", False):
        how = "by fingerprint"
    elif problem and subject is given:
        how = "in a state: its class, attributes, length and repr"
    rows = [IdentityPart(call, "data", how, found.digest[:6])]
    known = how if how in ("by fingerprint", "the code of its function") else "in full"
    on_disk = f"unknown: {problem}" if problem else known
    where = "in cache(folder), save, column(cache_dir=...)"
    rows.append(IdentityPart(call, "data", f"{where}: {on_disk}", full.digest[:6]))
    return rows


def _describe_code(call: str, found: Examination) -> list[IdentityPart]:
    rows = [IdentityPart(call, part.name, part.kind, part.digest[:6]) for part in found.parts]
    rows += [IdentityPart(call, name, "by name (library)") for name in found.libraries]
    rows += [IdentityPart(call, name, f"only its type: {why}") for name, why in found.unseen.items()]
    return rows
