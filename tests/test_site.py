"""The documentation site, without building it: its lists of pages, the names of its reference, anchors, its checks."""

import ast
import collections
import importlib
import json
import re
import sys
import types
import urllib.parse
import zlib
from pathlib import Path

import pytest

import bushel

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS)]
check_site = importlib.import_module("check_site")
public_names = importlib.import_module("public_names")
repository_links = importlib.import_module("repository_links")

PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
LISTS = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCES = re.compile(r"^( *)(`{3,}|:{3,}).*?^\1\2$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(path):
    return str(path.relative_to(DOCS))


def words_of(path):
    """The text of a page without its code."""
    return FENCES.sub("", path.read_text(encoding="utf-8"))


def anchors_of(path):
    """The anchors of the headings of a page, as code hosts and the site make them."""
    anchors = set()
    for title in re.findall(r"^#+ (.*)$", words_of(path), re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)  # of a link only its text
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        anchors.add(anchor if anchor not in anchors else f"{anchor}-1")
    return anchors


# Pages.


def test_every_page_is_in_one_list_of_the_site():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = [line for block in LISTS.findall(text) for line in block.splitlines() if line and not line.startswith(":")]
    pages = {name_of(path).removesuffix(".md") for path in PAGES} - {"index", "README"}
    missing_by_choice = {"reference/api/index", "look_at_your_data", "command_line"}  # generated, or may not exist
    assert len(listed) == len(set(listed))
    assert pages - set(listed) == set(), "pages that index.md does not list"
    assert set(listed) - pages - missing_by_choice == set(), "listed pages that do not exist"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_has_one_title(path):
    titles = re.findall(r"^# ", words_of(path), re.MULTILINE)
    assert len(titles) == 1, "the list of the site would show each of them"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_anchors_of_links_exist(path):
    for link in LINK.findall(words_of(path)):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme:
            assert parts.scheme in ("https", "http") and "." in parts.netloc, link
        elif parts.fragment:
            target = (path.parent / parts.path).resolve() if parts.path else path
            assert target.suffix != ".md" or parts.fragment in anchors_of(target), link


def test_an_anchor_that_does_not_exist_is_found():
    assert "a-state-knows-its-pipeline" in anchors_of(DOCS / "state.md")
    assert "a-heading-that-nobody-wrote" not in anchors_of(DOCS / "state.md")


@pytest.mark.parametrize("path", sorted((DOCS / "tutorials").glob("*.md")), ids=name_of)
def test_a_tutorial_is_a_notebook(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("---\njupytext:\n"), "without this header the build shows the code and does not run it"
    cells = CELL.findall(text)
    assert len(cells) >= 5
    for cell in cells:
        ast.parse(cell)


# The reference.


def test_every_public_module_has_a_page():
    modules = {name for name in dir(bushel) if isinstance(getattr(bushel, name), types.ModuleType)}
    modules -= {name for name in modules if name.startswith("_")}
    promised = {f"bushel.{name}" for name in [*bushel.__all__, *bushel._EXTRAS] if name in modules}
    assert len(promised) > 10
    assert promised <= set(public_names.MODULES)


def test_every_exported_name_is_found():
    found = {name.full for name in public_names.all_names()}
    for module in public_names.MODULES:
        for name in importlib.import_module(module).__all__:
            assert f"{module}.{name}" in found


def test_a_new_public_name_is_a_decision():
    """Each public name is a promise. Raise the limit only for a name that a guide needs, or the type of a result."""
    pytest.importorskip("grain")
    pytest.importorskip("cyreal")
    givers = collections.Counter(map(public_names.find_giver, public_names.all_names()))
    assert givers["Bushel"] <= 156
    assert givers["Grain"] > 140 and givers["CrossFormer"] > 50 and givers["cyreal"] > 40


def test_a_guide_uses_every_name_of_ours():
    """The reference and the history of changes are no guides."""
    pytest.importorskip("grain")
    pytest.importorskip("cyreal")
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py"), ROOT / "README.md"]
    words = set(
        re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in files if "design" not in file.parts))
    )
    ours = [name for name in public_names.all_names() if public_names.find_giver(name) == "Bushel"]
    assert len(ours) > 100
    assert [name.full for name in ours if name.name not in words] == []


def test_names_of_crossformer_are_exported():
    for module, names in public_names.CROSSFORMERS.items():
        assert set(names.split()) <= {name.name for name in public_names.names_of(module)}


def test_every_public_name_has_a_docstring():
    first_lines = {name.full: (name.value.__doc__ or "").split("\n")[0] for name in public_names.homes().values()}
    assert [name for name, line in first_lines.items() if len(line.split()) < 2] == [], "the reference shows this line"


def test_pages_of_names_differ_in_more_than_case():
    pages = [*public_names.page_names(public_names.homes()).values(), *public_names.MODULES]
    assert len({page.lower() for page in pages}) == len(pages), "on macOS one would replace the other"


# Links out of the site, and the checks of the built site.


def test_links_out_of_the_site_lead_to_the_repository():
    text = "[a](../examples/digits.py) [b](state.md) [c](../benchmarks/README.md#x) [d](../examples)"
    assert repository_links.to_repository(text, "jit.md") == (
        "[a](https://github.com/bushel-data/bushel/blob/main/examples/digits.py) [b](state.md) "
        "[c](https://github.com/bushel-data/bushel/blob/main/benchmarks/README.md#x) "
        "[d](https://github.com/bushel-data/bushel/tree/main/examples)"
    )
    assert repository_links.to_repository("[a](../state.md)", "howto/resume.md") == "[a](../state.md)"
    assert "blob/main/README.md" in repository_links.to_repository("[a](../../README.md)", "howto/resume.md")


def test_a_link_with_a_file_name_shows_the_title_of_the_page():
    text = "see [state.md](state.md#data), [own](sources/own.md), [a.md](https://x.org/a.md)"
    assert (
        repository_links.with_titles(text) == "see [](state.md#data), [own](sources/own.md), [a.md](https://x.org/a.md)"
    )


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ("<a href='two.html'>", "does not exist"),
        ("<a href='#there'>", "no such anchor"),
        ("<a href='https:///x'>", "no address"),
        ("<script src='https://cdn.org/x.js'>", "offline"),
    ],
)
def test_a_bad_link_of_the_built_site_is_found(tmp_path, link, sentence):
    (tmp_path / "one.html").write_text("<p id='here'><a href='#here'></a><a href='one.html#here'></a>")
    assert check_site.find_bad_links(tmp_path) == []
    (tmp_path / "one.html").write_text(f"<p id='here'>{link}")
    (fault,) = check_site.find_bad_links(tmp_path)
    assert sentence in fault


def test_a_name_that_the_reference_lacks_is_found(tmp_path):
    names = [name.value.__name__ if name.kind == "module" else name.full for name in public_names.all_names()]
    header = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# The rest is compressed using zlib.\n"

    def write(names):
        lines = "".join(f"{name} py:class 1 page.html#$ -\n" for name in names)
        (tmp_path / "objects.inv").write_bytes(header + zlib.compress(lines.encode()))

    write(names)
    assert check_site.find_missing_names(tmp_path) == []
    write(name for name in names if name != "bushel.MapDataset")
    assert check_site.find_missing_names(tmp_path) == ["bushel.MapDataset is public, but is not in the reference."]


def test_what_people_search_for_is_found(tmp_path):
    pytest.importorskip("snowballstemmer")
    index = {
        "docnames": ["howto/resume", "howto/validation_split", "lists"],
        "terms": {"split": [1, 2], "resum": 0, "train": 1, "num_work": 2},
        "titleterms": {"valid": 1},
        "alltitles": {"How do I make a validation split?": [[1, None]], "num_workers, memory": [[2, "x"]]},
    }
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    assert check_site.find_pages(tmp_path, "train split") == {"howto/validation_split"}
    assert check_site.find_pages(tmp_path, "resume") == {"howto/resume"}
    assert check_site.find_pages(tmp_path, "num_workers") == {"lists"}
    wanted = {"resume": "howto/resume", "validation split": "howto/validation_split", "resumed split": "lists"}
    assert check_site.find_missing_words(tmp_path, wanted) == [
        "The search of the site does not find lists for 'resumed split'."
    ]


SHELL = re.compile(r"^```\n(\$ |pip |python |bushel |export |ray |ssh |make )", re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_blocks_of_shell_commands_say_so(path):
    assert not SHELL.search(path.read_text(encoding="utf-8")), "write ```bash, so that the site colours it"
