"""Everything in the documents runs: doctests of every module, and every Python block of every page."""

import doctest
import gc
import importlib
import inspect
import pkgutil
import re
import runpy
import tempfile
import tomllib
from pathlib import Path

import pytest

import bushel
from bushel._src.base.public import find_module
from bushel.trajectory.oxe import octo

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
LINKED_PAGES = [*PAGES, *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob(".github/*.md")]
"""Also those whose code blocks do not run as a whole."""
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def modules():
    names = [module.name for module in pkgutil.walk_packages(bushel.__path__, "bushel.")]
    return ["bushel", *(name for name in names if not name.endswith("__main__"))]


def blocks(text):
    """Python blocks of a page, each with as many empty lines before it as it has on the page."""
    return ["\n" * text[: match.start(1)].count("\n") + match.group(1) for match in FENCE.finditer(text)]


def run_page(path):
    namespace = {"__name__": "page"}
    for block in blocks(path.read_text(encoding="utf-8")):
        exec(compile(block, str(path), "exec"), namespace)


def runs_here(path):
    """Whether a page has code that needs no cluster; tests/cluster runs the page that does."""
    return path.name != "many_machines.md" and bool(blocks(path.read_text(encoding="utf-8")))


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def temporary_files_go_with_the_test(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Finder(doctest.DocTestFinder):
    """Finds the doctests of what is public in the module that defines it: what it shows is its door."""

    def _from_module(self, module, object):
        if inspect.isclass(object) or inspect.isfunction(object):
            return find_module(object) == module.__name__
        return super()._from_module(module, object)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", modules())
def test_doctests(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    for test in Finder(exclude_empty=True).find(module, name):
        runner.run(test)
    assert not runner.summarize().failed


def test_there_are_doctests():
    finder = Finder(exclude_empty=True)
    tests = [test for name in modules() for test in finder.find(importlib.import_module(name), name)]
    assert sum(bool(test.examples) for test in tests) > 50


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # sources on a page keep their files open
@pytest.mark.parametrize("path", [path for path in PAGES if runs_here(path)], ids=name_of)
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Pages show how to add entries to these tables, which all tests of this process share.
    for table in (octo.OXE_DATASET_CONFIGS, octo.OXE_STANDARDIZATION_TRANSFORMS, octo.OXE_NAMED_MIXES):
        for name in ("drawer", "kitchen"):
            monkeypatch.setitem(table, name, None)
            del table[name]
    run_page(path)
    gc.collect()  # here, and not in a test that does not expect the warning


def test_the_example_of_a_text_stream_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "text_stream.py"), run_name="__main__")
    assert "resumed: the same batches followed" in capsys.readouterr().out


def test_a_page_that_is_wrong_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n\n```python\nx = 1\n```\n\n```text\nnot code\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        run_page(page)
    assert raised.traceback[-1].lineno == 12 - 1  # counted from zero; the line of the page


@pytest.mark.parametrize("path", LINKED_PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", LINKED_PAGES, ids=name_of)
def test_tests_that_a_page_names_exist(path):
    for file, test in TEST_NAME.findall(path.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        if test:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"^[\w./]+\.(?:py|md)$")
ANY_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def find_stale_names(text, sources, paths):
    """The files and identifiers between backticks that no longer exist. A file may be named by the end of its path."""
    words = set(re.findall(r"\w+", sources))
    for span in SPAN.findall(ANY_FENCE.sub("", text)):
        if FILE.match(span):
            if not any(f"/{path}".endswith(f"/{span}") for path in paths):
                yield span
        elif re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", span) and not words.issuperset(re.findall(r"\w+", span)):
            yield span


@pytest.mark.parametrize("name", ["README.md", "engine.md", "glossary.md"])
def test_names_on_design_pages_exist(name):
    folders = [ROOT / folder for folder in ("src", "tests", "docs", "benchmarks")]
    files = [*ROOT.glob("*"), *(file for folder in folders for file in folder.rglob("*.*"))]
    paths = [file.relative_to(ROOT).as_posix() for file in files]
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]
    page = (ROOT / "docs" / "design" / name).read_text(encoding="utf-8")
    assert list(find_stale_names(page, "\n".join([*sources, *paths, *blocks(page)]), paths)) == []


def test_a_name_that_is_gone_is_found():
    paths = ["src/bushel/_src/engine/opener.py", "tests/test_docs.py"]
    kept = "`opener.py`, `engine/opener.py`, `Opener.open(x)`, `a b`"
    text = kept + ", `engine/gone.py`, `pener.py`, `Gone`, `Opener.gone()`\n```\n`Old`\n```\n"
    stale = list(find_stale_names(text, "class Opener: def open(x)", paths))
    assert stale == ["engine/gone.py", "pener.py", "Gone", "Opener.gone()"]


def test_the_index_of_the_documents_names_every_page():
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert page == ROOT / "docs" / "README.md" or f"({page.relative_to(ROOT / 'docs')})" in text, page


def on_pypi(text):
    """The README as PyPI shows it, by the rules of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text


def test_links_of_the_readme_lead_somewhere_on_pypi():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = [target for target in LINK.findall(text) if not target.startswith("http")]
    assert relative, "there is something to rewrite"
    assert [target for target in LINK.findall(on_pypi(text)) if not target.startswith("https://")] == []
    assert on_pypi("[a](docs/state.md) [b](https://x.org/y)").endswith("/blob/main/docs/state.md) [b](https://x.org/y)")
