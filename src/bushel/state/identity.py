"""The identity of a pipeline: a tree of names and digests, one per node, and the difference between two of them.

Executors, threads and buffers do not count: they never change the output.
"""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import numpy as np

from bushel.base.transforms import show_value
from bushel.graph.leaves import Source
from bushel.graph.node import Node, skip_transparent
from bushel.graph.ordered import MixStream
from bushel.graph.records import Records
from bushel.sources.protocol import file_fingerprint
from bushel.state.digest import class_digest, code_digest, digest, whole_digest

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode differs between Python versions, so across versions functions are compared by name only."""

BY_KEY = "mix by key"
OWN_PART = "_own_identity"
"""The attribute of a node that keeps its part of the identity."""

_WHOLE = "_identity"
"""The attribute of a node that keeps the identity of the pipeline that ends with it, once it was asked for."""


def identify(node: Node) -> list[Any]:
    """What a node is, as plain data: [call, digest of parameters, digest of functions, [identities of parents]]."""
    prepare(node)
    return _copy(vars(node)[_WHOLE])


def prepare(node: Node) -> None:
    """Finds out the identity of a pipeline, unless that was done before. Call it before one of its functions runs."""
    if _WHOLE not in vars(node):
        vars(node)[_WHOLE] = _identify(node)


def _copy(identity: list[Any]) -> list[Any]:
    """A copy for a state, which belongs to the user."""
    return [*identity[:3], [_copy(parent) for parent in identity[3]]]


def _identify(node: Node) -> list[Any]:
    node = skip_transparent(node)
    parents = [_identify(parent) for parent in node.parents]
    if isinstance(node, MixStream) and node.keys is not None:
        # The weights and the parts of a mixture by key may change between runs: parts are compared by name.
        return [BY_KEY, BY_KEY, "", [[key, key, "", [part]] for key, part in zip(node.keys, parents, strict=True)]]
    return [*own_part(node), parents]


def freeze(node: Node) -> None:
    """Digests the functions of a pipeline, unless that was done before. Call it before one of them runs.

    A function may change what it closes over while it runs, and that is no part of an identity. A pipeline whose
    functions never run, and whose state nobody asks for, is never digested: building one is cheap.
    """
    if OWN_PART in vars(node):  # it was frozen before, and its parents before it
        return
    for parent in node.parents:
        freeze(parent)
    # The data of a source, or of a file, do not change when they are read.
    if not isinstance(node, (Source, Records)) and not node.transparent:
        own_part(node)


def own_part(node: Node) -> tuple[str, str, str]:
    """The part of the identity that is the node's own, found out once and kept."""
    known = vars(node).get(OWN_PART)
    if known is None:
        known = vars(node)[OWN_PART] = _own_part(node)
    return known


def functions_digest(node: Node) -> str:
    """A whole digest of the functions of a pipeline and of all values that they read, for names of files in a cache.

    An identity samples long lists and leaves out globals. That is enough for a state, which is restored soon.
    """
    return whole_digest(*_functions(node))


def _functions(node: Node) -> list[Any]:
    node = skip_transparent(node)
    own = [value for name, value in node.parameters().items() if _is_function(name, value)]
    if node.own_class is not None:
        own.append(node.own_class)
    return own + [function for parent in node.parents for function in _functions(parent)]


def _is_function(name: str, value: Any) -> bool:
    return callable(value) or name in ("transform", "selection_map")


def _own_part(node: Node) -> tuple[str, str, str]:
    if isinstance(node, Source):
        return node.call(), digest(fingerprint(node.source)), ""
    parameters: dict[str, Any] = {}
    functions: dict[str, str] = {}
    for name, value in node.parameters().items():
        if _is_function(name, value):
            parameters[name] = getattr(value, "__qualname__", type(value).__qualname__)
            functions[name] = code_digest(value)
        else:
            parameters[name] = value
    if node.own_class is not None:
        functions["class"] = class_digest(node.own_class)
    return node.call(), digest(node.family or type(node).__name__, parameters), digest(functions) if functions else ""


def fingerprint(source: Any) -> Any:
    """What tells the data of a source from other data, without reading all of it."""
    own = getattr(source, "fingerprint", None)
    if callable(own):
        return [type(source).__name__, own()]
    if isinstance(source, (list, tuple, dict, str, bytes, range, np.ndarray)):
        return source
    known = [type(source).__name__, len(source)]
    own_text = [] if type(source).__repr__ is object.__repr__ else [show_value(source)]
    paths = getattr(source, "paths", None)
    if not isinstance(paths, (str, list, tuple)):
        return known + own_text
    return [*known, file_fingerprint(paths), *(_without_folders(text, paths) for text in own_text)]


def _without_folders(text: str, paths: str | list[Any] | tuple[Any, ...]) -> str:
    """The repr of a source of files without the folders of the files, so that it stays the same when files move."""
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str) else paths)]
    for name in sorted(filter(os.path.dirname, names), key=len, reverse=True):
        text = text.replace(name, os.path.basename(name))
    for folder in sorted(filter(None, {os.path.dirname(name) for name in names}), key=len, reverse=True):
        text = text.replace(folder, "")
    return text


def list_differences(saved: Any, current: list[Any], *, same_python: bool) -> list[str]:
    """Lines that say where a saved identity differs from the current one. An empty list if they are the same."""
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
    """Compares chains of operations line by line, and the branches above them one by one."""
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
    """A run of nodes with one parent each, from the source side down, and the branches above it."""
    chain = [node]
    while len(chain[-1][3]) == 1 and chain[-1][0] != BY_KEY:
        chain.append(chain[-1][3][0])
    return chain[::-1], chain[-1][3]


def _key(node: list[Any], same_python: bool) -> tuple[str, ...]:
    """What must be equal for two nodes to be the same. The call does not count: a repr in it may hold an address."""
    return tuple(node[1:3]) if same_python else (node[1],)
