"""The figures of docs/design/figures.md are counted as that page says, in both layouts of the library."""

import textwrap

import pytest
from tools import house


def lines_of(text):
    return house.count_code_lines(textwrap.dedent(text))


def test_only_lines_with_code_count():
    text = '''
        """A module.

        With a docstring of three lines."""

        # A comment.
        import os  # with a comment

        text = """A text of
        two lines."""


        def f(
            x,
        ):
            """A docstring."""
            return x
        '''
    assert lines_of(text) == 1 + 2 + 4
    assert lines_of("") == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The rows of a block.", "noun"),
        ("Whether a row is missing.", "noun"),
        ("Rows of a block.", "noun"),
        ("`rows` of a block.", "noun"),
        ("Returns the rows.", "third person"),
        ("Tries again.", "third person"),
        ("Return the rows.", "command"),
        ("Read, then close.", "command"),
        ("Records that users pass.", "noun"),
        ("Records what users pass.", "third person"),
        ("Record a death.", "command"),
        ("Batch sizes.", "noun"),
    ],
)
def test_the_three_ways_a_docstring_begins(text, kind):
    assert house.kind_of_docstring(text) == kind


FILES = {
    "__init__.py": "from bushel{private}.graph.node import Node\nfrom bushel{private} import graph",
    "{folder}graph/__init__.py": "",
    "{folder}graph/node.py": "class Node: ...\n\n\nclass Other: ...",
    "{folder}graph/apply.py": "from .node import Node\nfrom . import batch, batch",
    "{folder}graph/batch.py": 'import_module("bushel{private}.graph.late")\n\n\nclass Node: ...',
    "{folder}graph/late.py": "import numpy",
    "{folder}engine/__init__.py": "def f():\n    from bushel{private}.graph import node",
    "{folder}engine/node.py": "x = 1",
}


@pytest.mark.parametrize(("folder", "private"), [("", ""), ("_src/", "._src")])
def test_both_layouts_are_read(tmp_path, folder, private):
    library = tmp_path / "bushel"
    for path, text in FILES.items():
        file = library / path.replace("{folder}", folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{private}", private))
    modules = house.find_modules(library)
    importers = house.count_importers(modules)
    graph = f"bushel{private}.graph"
    assert importers[f"{graph}.node"] == 3  # the door, apply and engine
    assert importers[f"{graph}.batch"] == importers[f"{graph}.late"] == 1
    figures = house.describe_sizes(library)
    assert figures["modules with one importer; of these with 60 code lines at most"] == "2; 2"
    assert figures["code lines of `engine` and `graph`"] == "10"
    assert figures["class names that occur more than once"] == "1"
    assert figures["module names that occur more than once"] == "1"
    public = figures["modules and packages at the top of `bushel` without an underscore; of these in the reference"]
    assert public == ("2; 1" if not folder else "0; 0")
    assert house.replace_column(house.PAGE.read_text(encoding="utf-8"), "after", figures), "the page has all rows"


def test_documents_and_benchmarks_are_counted_apart(tmp_path):
    for path, text in {
        "README.md": "one two",
        "docs/page.md": "three",
        "docs/_build/page.md": "not this",
        "benchmarks/README.md": "a b c",
        "benchmarks/results/all.md": "d",
        "tests/trajectory/golden/README.md": "not this",
        ".venv/lib/page.md": "not this",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert house.count_words(tmp_path) == (3, 4)


def test_a_call_is_seen_by_its_module():
    files = house.record_here()
    assert any(file.startswith("graph/") for file in files)
    assert any(file.startswith("engine/") for file in files)
    assert not any(file.startswith(("/", "_src/", "cli/", "view/")) for file in files)


PAGE = "| figure | before | after | goal |\n| --- | --- | --- | --- |\n| lines | 3 | | few |\n| words | | | |\n"


def test_one_column_of_the_page_is_written():
    text = house.replace_column(PAGE, "after", {"lines": "2", "words": "1"})
    assert "| lines | 3 | 2 | few |\n| words | | 1 | |\n" in text
    with pytest.raises(ValueError, match="The table has no row for 'pages'"):
        house.replace_column(PAGE, "after", {"pages": "1"})
