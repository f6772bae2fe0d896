"""Check the built site: public names are in its inventory, links lead somewhere, nothing comes from elsewhere.

python docs/check_site.py docs/_build/html
"""

import json
import sys
import zlib
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parent / "_ext"))


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag refers to."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("img", "script") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and "href" in values and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(values["href"])


def find_bad_links(site: Path) -> list[str]:
    """A sentence for each link of the site that leads nowhere, and for each file that comes from another site."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for link in page.loaded:
            if urlsplit(link).scheme not in ("", "data"):
                faults.append(f"{name} loads {link}, so the site does not work offline.")
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                if not parts.netloc or " " in link:
                    faults.append(f"{name} links to {link}, which is no address.")
                continue
            if parts.scheme:  # mailto: and the like
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                faults.append(f"{name} links to {link}, which does not exist.")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                faults.append(f"{name} links to {link}: the page has no such anchor.")
    return faults


def read_inventory(path: Path) -> set[str]:
    """The names of the Python domain in an inventory of Sphinx."""
    content = path.read_bytes()
    for _ in range(4):  # lines of the header
        content = content[content.index(b"\n") + 1 :]
    lines = zlib.decompress(content).decode().splitlines()
    return {line.split(" ")[0] for line in lines if line.split(" ")[1].startswith("py:")}


def find_missing_names(site: Path) -> list[str]:
    """A sentence for each public name that the reference does not describe."""
    from public_names import all_names

    described = read_inventory(site / "objects.inv")
    wanted = {name.value.__name__ if name.kind == "module" else name.full for name in all_names()}
    return [f"{name} is public, but is not in the reference." for name in sorted(wanted - described)]


SEARCHED = {
    "huggingface": "sources/huggingface",
    "hugging face": "sources/huggingface",
    "num_workers": "howto/use_workers",
    "validation split": "howto/validation_split",
    "train test split": "howto/validation_split",
    "imagenet": "tutorials/images",
    "image folder": "tutorials/images",
    "tokenizer": "howto/tokenize_text",
    "pytorch": "howto/from_torch",
    "checkpoint": "checkpoints",
    "resume": "howto/resume",
    "s3": "sources/stores",
    "gcs": "sources/stores",
    "lerobot": "lerobot",
    "packing": "columns",
}
"""What people search for, and a page that the search must find."""


def find_pages(site: Path, searched: str) -> set[str]:
    """The pages that the search of the site finds: those with all words, or with the text in one of their titles."""
    import snowballstemmer

    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.partition("Search.setIndex(")[2].rstrip().removesuffix(")"))
    stem = snowballstemmer.stemmer("english").stemWord
    found = []
    for word in searched.lower().split():
        numbers: set[int] = set()
        for table in (index["terms"], index["titleterms"]):
            for term in {word, stem(word)}:
                places = table.get(term, [])
                numbers |= {places} if isinstance(places, int) else set(places)
        found.append(numbers)
    titled = {place[0] for title, places in index["alltitles"].items() if searched in title.lower() for place in places}
    return {index["docnames"][number] for number in set.intersection(*found) | titled}


def find_missing_words(site: Path, searched: Mapping[str, str] = SEARCHED) -> list[str]:
    """A sentence for each search that does not find its page."""
    return [
        f"The search of the site does not find {page} for {words!r}."
        for words, page in searched.items()
        if page not in find_pages(site, words)
    ]


def find_faults(site: Path) -> list[str]:
    """All faults of a built site."""
    return [*find_missing_names(site), *find_bad_links(site), *find_missing_words(site)]


if __name__ == "__main__":
    faults = find_faults(Path(sys.argv[1]))
    sys.exit("\n".join(faults) or None)
