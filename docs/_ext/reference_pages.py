"""Writes the pages of the reference before Sphinx reads them: one page per public module, class and function."""

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from public_names import MODULES, Name, homes, names_of, page_names, value_home
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import bushel
from bushel._src.base.public import find_module

ROOT = Path(__file__).parent.parent.parent
SPECIAL = ("__call__", "__getitem__", "__getitems__", "__iter__", "__next__", "__len__")
"""Methods that are called by Python's own syntax; they are described where they have a docstring of their own."""

VERSIONS = {
    "__version__": "The version of Bushel as a text.",
    "__version_info__": "The version of Bushel as three numbers.",
}

GROUPS = {
    "Datasets and iterators": ["MapDataset", "IterDataset", "Dataset", "DatasetIterator", "ElasticIterator", "Column",
                               "PackedMapDataset",
                               "ElementOrigin", "SourceRecord", "Description", "ShownElement", "Report", "ReportServer",
                               "explain_identity", "IdentityExplanation", "Written"],
    "Options": ["DatasetOptions", "MultiprocessingOptions", "RayOptions", "ReadOptions", "WorkerOptions", "config"],
    "DataLoader": ["DataLoader", "DataLoaderIterator", "load", "IndexSampler", "Sampler", "SequentialSampler",
                   "ShardOptions", "ShardByJaxProcess", "NoSharding", "Record", "RecordMetadata"],
    "Transformations": ["Transformation", "Batch", "MapTransform", "RandomMapTransform"],
    "Errors": ["BushelError", "StateMismatch", "PositionOutOfRange", "WorkerDied", "WorkerTimeout", "TooManySkipped",
               "StoppedByUser", "PipelineNotSent", "DamagedFile", "TooLarge", "UnknownFormat", "OtherFile",
               "SavedByAnotherPipeline", "BushelWarning", "BushelDeprecationWarning"],
}  # fmt: skip
"""The names of `bushel` by theme. Names that are missing here are listed after them."""


def write_pages(folder: Path) -> list[str]:
    """Write all pages into `folder` and remove those that are no longer wanted. Returns their file names."""
    folder.mkdir(parents=True, exist_ok=True)
    described = homes()
    files = page_names(described)
    pages = {f"{module}.rst": module_page(module, described, files) for module in MODULES}
    pages["index.rst"] = index_page()
    pages |= {f"{file}.rst": name_page(name, described) for name, file in files.items()}
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # or Sphinx would read all of them again
            path.write_text(text, encoding="utf-8")
    return sorted(pages)


def heading(text: str, line: str = "=") -> str:
    """A title in reStructuredText."""
    return f"{text}\n{line * len(text)}\n\n"


def index_page() -> str:
    """The list of all modules."""
    text = heading("Public names")
    text += (
        "Every name that Bushel exports, generated from the docstrings. Names that are not listed here may change.\n\n"
    )
    text += _table([(f":py:mod:`{module}`", title) for module, title in MODULES.items()])
    return text + ".. toctree::\n   :hidden:\n\n" + "".join(f"   {module}\n" for module in MODULES)


def module_page(module: str, described: dict[int, Name], files: dict[Name, str]) -> str:
    """The page of a module: its docstring, tables of its names, and a line for each name described elsewhere."""
    names = names_of(module)
    here = [name for name in files if name.module == module]
    here.sort(key=lambda name: name.full.lower())
    shown = {name.full for name in here}
    values = [name for name in names if name.kind == "data" and value_home(name) == name.full]
    shown |= {name.full for name in values}
    other = [name for name in names if name.kind != "module" and name.full not in shown]
    text = heading(module)
    text += f".. automodule:: {module}\n\n"
    text += _tables(module, here)
    if modules := [name for name in names if name.kind == "module" and name.value.__name__ in MODULES]:
        rows = [(f":py:mod:`{name.value.__name__}`", MODULES[name.value.__name__]) for name in modules]
        text += heading("Modules", "-") + _table(rows)
    if values:
        text += heading("Values", "-")
        text += "".join(_value(name) for name in values)
    if other:
        text += heading("Other names", "-")
        text += "These names are described under the name that is used elsewhere.\n\n"
        text += "".join(_alias(name, described) for name in other)
    if here:
        text += ".. toctree::\n   :hidden:\n\n" + "".join(f"   {files[name]}\n" for name in here)
    return text


def _tables(module: str, names: list[Name]) -> str:
    if module == "bushel":
        by_name = {name.name: name for name in names}
        groups = {title: [by_name.pop(name) for name in listed if name in by_name] for title, listed in GROUPS.items()}
        groups["Others"] = list(by_name.values())
    else:
        groups = {
            "Classes": [name for name in names if name.kind == "class"],
            "Functions": [name for name in names if name.kind == "function"],
            "Errors": [name for name in names if name.kind == "exception"],
        }
    rows = {title: [(f":py:obj:`{n.name} <{n.full}>`", _summary(n.value)) for n in ns] for title, ns in groups.items()}
    return "".join(heading(title, "-") + _table(lines) for title, lines in rows.items() if lines)


def _table(rows: list[tuple[str, str]]) -> str:
    text = ".. list-table::\n   :widths: 30 70\n   :class: names\n\n"
    return text + "".join(f"   * - {left}\n     - {right}\n" for left, right in rows) + "\n"


def _summary(value: object) -> str:
    """The first sentence of a docstring."""
    lines = (inspect.getdoc(value) or "").partition("\n\n")[0].split("\n")
    text = " ".join(line.strip() for line in lines)
    return re.split(r"(?<=[.!?:])\s", text, maxsplit=1)[0].removesuffix(":")


def _value(name: Name) -> str:
    if name.name == "config":
        directive = f"   .. autoclass:: {_path(type(name.value))}\n      :no-index:\n      :members:\n"
        return f".. py:data:: {name.name}\n\n   {_summary(name.value)}\n\n{directive}\n"
    value = f"   :value: {name.value!r}\n" if isinstance(name.value, str) and not name.name.startswith("__") else ""
    text = VERSIONS.get(name.name) or _value_docstring(name)
    return f".. py:data:: {name.name}\n{value}\n   {text}\n\n"


def _value_docstring(name: Name) -> str:
    """The docstring below a value, in its door or in a module from which the door imports."""
    door = ast.parse(inspect.getsource(sys.modules[name.module]))
    imported = {node.module for node in ast.walk(door) if isinstance(node, ast.ImportFrom) and node.module}
    for module in (name.module, *sorted(module for module in imported if module.startswith("bushel._src."))):
        docs = ModuleAnalyzer.for_module(module).find_attr_docs()
        if text := docs.get(("", name.name)):
            return " ".join(text).strip()
    raise ValueError(f"{name.full} has no docstring: write one below it, where it is defined.")


def _path(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _alias(name: Name, described: dict[int, Name]) -> str:
    if name.kind == "data":
        return f".. other-name:: {name.full} data {value_home(name)}\n\n"
    option = "   :canonical:\n" if name.kind != "function" and name.full == _path(name.value) else ""
    return f".. other-name:: {name.full} {name.kind} {described[id(name.value)].full}\n{option}\n"


class OtherName(SphinxDirective):
    """`.. other-name:: NAME KIND TARGET`: NAME is in the index and leads here, where a line refers to TARGET."""

    required_arguments = 3
    option_spec: ClassVar = {"canonical": directives.flag}  # autodoc has noted the name already

    def run(self) -> list[nodes.Node]:
        """The line, with an anchor."""
        name, kind, target = self.arguments
        if "canonical" not in self.options:
            self.env.domains.python_domain.note_object(name, kind, name, aliased=True, location=self.get_location())
        line = nodes.paragraph(ids=[name])
        parsed, _ = self.state.inline_text(f"``{name}`` is :py:obj:`{target}`.", self.lineno)
        line += parsed
        return [line]


def name_page(name: Name, described: dict[int, Name]) -> str:
    """The page of a class or function. A class refers to the methods of its base class where that has a page."""
    text = heading(name.full)
    text += f".. currentmodule:: {name.module}\n\n"
    if name.kind == "function":
        return text + f".. autofunction:: {name.full}\n"
    text += f".. auto{name.kind}:: {name.full}\n"
    base = next((described[id(cls)] for cls in name.value.__mro__[1:] if id(cls) in described), None)
    members = list(_members(name.value, base.value if base else object))
    made_by = [member for member in vars(type(name.value)) if _is_public(member)] if not base else []
    made_by = made_by if _has_meta(name.value) else []
    if made_by or members:
        text += "\n"
    for member in [*made_by, *members]:
        kind = "method" if member in made_by else _member_kind(name.value, member)
        if kind == "attribute" and not hasattr(name.value, member):  # set in the constructor: autodoc looks in the door
            text += f"\n   .. py:attribute:: {member}\n\n      {_attribute_text(name.value, member)}\n\n"
        else:
            text += f"   .. auto{kind}:: {name.full}.{member}\n"
    if base:
        text += f"\n   It also has the methods of :py:obj:`{base.full}`.\n"
    return text


def _has_meta(value: type) -> bool:
    return type(value).__module__.partition(".")[0] == "bushel"


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _members(cls: type, described_base: type):
    """Names of the members that Bushel's own classes define, those of the class itself first."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "bushel" or base in described_base.__mro__:
            continue
        documented_fields = [name for name in _attribute_docs(base) if _is_public(name)]
        yield from (name for name in documented_fields if name not in seen)
        seen.update(documented_fields)
        for name, value in vars(base).items():
            if name in seen:
                continue
            seen.add(name)
            # Not what only explains why a class has no such method (`hints.Unsupported`): autodoc cannot read it.
            special = name in SPECIAL and callable(value) and value.__doc__
            documented = inspect.isroutine(value) or isinstance(value, property | staticmethod | classmethod)
            if special or (_is_public(name) and (documented or _is_enum_member(cls, name))):
                yield name


def _attribute_docs(cls: type) -> list[str]:
    """Attributes and fields of a class that have a docstring below them."""
    documented = ModuleAnalyzer.for_module(find_module(cls)).find_attr_docs()
    return [name for owner, name in documented if owner == cls.__qualname__]


def _attribute_text(cls: type, name: str) -> str:
    """The docstring below an attribute, as one line."""
    for base in cls.__mro__:
        docs = ModuleAnalyzer.for_module(find_module(base)).find_attr_docs() if find_module(base) != "builtins" else {}
        if text := docs.get((base.__name__, name)):
            return " ".join(" ".join(text).split())
    raise ValueError(f"{cls.__name__}.{name} has no docstring.")


def _is_enum_member(cls: type, name: str) -> bool:
    return name in getattr(cls, "__members__", ())


def _member_kind(cls: type, name: str) -> str:
    value = inspect.getattr_static(cls, name, None)
    if isinstance(value, property) or type(value).__name__ == "cached_property":
        return "property"
    return "method" if inspect.isroutine(value) or isinstance(value, staticmethod | classmethod) else "attribute"


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """The address of the code of a name, for the links [source]."""
    try:
        value = __import__("importlib").import_module(info["module"])
        for part in info["fullname"].split("."):
            value = getattr(value, part)
        value = inspect.unwrap(value.fget if isinstance(value, property) else value)
        path = Path(inspect.getsourcefile(value) or "").resolve().relative_to(ROOT)
        lines, first = inspect.getsourcelines(value)
    except (AttributeError, ImportError, OSError, TypeError, ValueError):
        return None
    return f"https://github.com/bushel-data/bushel/blob/v{bushel.__version__}/{path}#L{first}-L{first + len(lines) - 1}"


def setup(app) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("other-name", OtherName)
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference" / "api"))
    app.config.linkcode_resolve = linkcode_resolve
    return {"parallel_read_safe": True, "parallel_write_safe": True}
