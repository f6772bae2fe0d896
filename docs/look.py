"""Take pictures of the built site in a real browser: two widths, light and dark. Look at them after a change of style.

    make docs && .venv/bin/python docs/look.py /tmp/pictures [PAGE ...]

Needs `pip install playwright` and Chromium; `--chromium` says where it is. A server on loopback serves the pages. The
program fails if a page asks for anything from elsewhere, if a page is wider than the window, if a script raises, or if
the search finds nothing, also in a copy of the site that is opened as files.
"""

import argparse
import contextlib
import functools
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HTML = Path(__file__).parent / "_build" / "html"
PAGES = [
    "index",
    "start",
    "tutorials/images",
    "tutorials/robots",
    "howto/from_torch",
    "explanation/comparison",
    "workers",
    "reference/api/index",
    "reference/api/bushel",
    "reference/api/bushel.MapDataset",
    "reference/api/bushel.sources.open",
    "reference/api/bushel.python",
]
WIDTHS = {"wide": 1440, "narrow": 390}


def look(pages: list[str], folder: Path, chromium: str, *, whole: bool = False) -> list[str]:
    """Write the pictures into `folder`, of whole pages or of their first screen. Returns a sentence for each fault."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    folder.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=HTML))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width_name, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                _watch(page, site, faults)
                for name in pages:
                    page.goto(f"{site}/{name}.html")
                    page.wait_for_load_state("load")
                    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                    if wide > 0:
                        faults.append(f"{name} is {wide} pixels wider than a window of {width}")
                    picture = folder / f"{name.replace('/', '_')}-{width_name}-{scheme}.png"
                    page.screenshot(path=picture, full_page=whole)
                _search(page, f"{site}/search.html", faults)
                page.screenshot(path=folder / f"search-{width_name}-{scheme}.png")
                context.close()
        _search(browser.new_page(), (HTML / "search.html").as_uri(), faults)
        browser.close()
    return sorted(set(faults))


class Quiet(SimpleHTTPRequestHandler):
    """Answers a request and prints nothing, also if the browser leaves before the answer."""

    def log_message(self, *words: object) -> None:
        """Print nothing."""

    def copyfile(self, source, outputfile) -> None:
        """Send a file."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().copyfile(source, outputfile)


def _search(page, address: str, faults: list[str]) -> None:
    page.goto(f"{address}?q=shuffle")
    try:
        page.wait_for_selector("#search-results li a", timeout=30_000)
    except Exception as error:
        faults.append(f"the search at {address} found nothing: {error}")


def _watch(page, site: str, faults: list[str]) -> None:
    page.on("pageerror", lambda error: faults.append(f"{page.url}: a script raised {error}"))
    page.on("request", lambda request: _note_request(request.url, site, faults))


def _note_request(url: str, site: str, faults: list[str]) -> None:
    if not url.startswith((site, "data:", "blob:")):
        faults.append(f"a page asks the network for {url}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Pictures of the documentation site.")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("pages", nargs="*", help="pages without .html")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--whole", action="store_true", help="whole pages, not only their first screen")
    options = parser.parse_args()
    faults = look(options.pages or PAGES, options.folder, options.chromium, whole=options.whole)
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
