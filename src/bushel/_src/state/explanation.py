"""What the identity of a pipeline has seen, as a table: `bushel.explain_identity(ds)`."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.base import tables
from bushel._src.base.public import public
from bushel._src.graph.custom import Custom
from bushel._src.graph.leaves import Source
from bushel._src.graph.node import Node, skip_transparent
from bushel._src.graph.records import Records
from bushel._src.sources.iterables import IterableStream
from bushel._src.state import identity
from bushel._src.state.digest import Examination, Memo

_HEAD = ("operation", "what", "how", "digest")


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
        return tables.as_text(_HEAD, [part.row for part in self.parts], left=len(_HEAD))

    def _repr_html_(self) -> str:
        return tables.as_html(_HEAD, [part.row for part in self.parts])


@public("bushel")
def explain_identity(dataset: Any) -> IdentityExplanation:
    """Says what makes a pipeline the same one for a state, a cache, a column, or a folder that `save` continues.

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
    identity.prepare(node)
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
    _, parameters, _ = identity.own_part(node, memo)
    examined: dict[str, Examination] = vars(node)[identity.EXAMINED]
    if isinstance(node, (Source, Records)) or (isinstance(node, Custom) and not node.parents):
        parts += _describe_data(call, node, examined, memo)
    else:
        parts.append(IdentityPart(call, "parameters", "all values", parameters[:6]))
    for name, found in examined.items():
        if name not in ("data", "parameters"):
            parts += _describe_code(call, found)


def _describe_data(call: str, node: Node, examined: dict[str, Examination], memo: Memo) -> list[IdentityPart]:
    """How a state compares the data of a source, and how a cache on disk does."""
    found = examined.get("data") or examined["parameters"]
    subject = node.source if isinstance(node, (Source, Records)) else getattr(node, "dataset", None)
    full, problem = identity.examine_all_data(node, subject, memo)
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
