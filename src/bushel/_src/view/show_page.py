"""The two ways to the page: `bushel.view`, served by a thread of this process, and the command `bushel view`."""

from __future__ import annotations

import argparse
import html
import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import Any

from bushel._src.base.public import public
from bushel._src.view import targets
from bushel._src.view.attachment import Attachment
from bushel._src.view.rerun_export import to_rerun
from bushel._src.view.server import Server
from bushel._src.view.session import Session
from bushel._src.view.targets import open_session


@public("bushel.view")
class View:
    """A page that is being served. A notebook shows it below the cell.

    >>> import bushel
    >>> with bushel.view(bushel.MapDataset.range(10)) as page:
    ...     page.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, session: Session, *, host: str = "127.0.0.1", port: int = 0, height: int = 720):
        from bushel._src.view.server import Server

        self._session = session
        """What the page shows."""
        self._height = height
        self._server = Server(session, host=host, port=port, embeddable=True)
        self._server.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token. Who has the token can read what the page shows."""
        return self._server.url

    @property
    def token(self) -> str:
        """The token, which requests for data carry in the header `X-Bushel-Token`."""
        return self._server.token

    def close(self) -> None:
        """Stop the server. Closing again does nothing."""
        self._server.close()
        self._session.close()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<view of {self._session.target} at {self.url}>"

    def _repr_html_(self) -> str:
        address = html.escape(self.url, quote=True)
        frame = f'<iframe src="{address}" width="100%" height="{self._height}" style="border:1px solid #8884"></iframe>'
        return f'{frame}<p><a href="{address}" target="_blank" rel="noopener">Open in a tab of its own</a></p>'


@public("bushel.view")
def view(
    target: Any,
    *,
    checkpoint: Any = None,
    training_step: int | None = None,
    index: int | None = None,
    tokenizer: Any = None,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    height: int = 720,
) -> View:
    """Serve a page that shows a data set. It returns at once; `close()` ends it. This needs the extra `view`.

    The page also shows the report of the iterator of this process that reads the data set, while it runs.

    Args:
      target: a dataset, a loader, an iterator, or what `bushel view` takes: a path, or "train.py:make_dataset".
      checkpoint: a state, or the path of a state or of checkpoints: the page opens at that position.
      training_step: opens the page at what the model saw at this step, counted from the last checkpoint before it.
      index: the element that the page opens with.
      tokenizer: decodes rows of tokens: an object with `decode`, or the path of a `tokenizer.json`.
      split: the split of a TFDS or robot data set.
      storage_options: options of the store, where the target is a path.
      host: the address to listen on. Only programs of this machine reach the default.
      port: the port; 0 takes a free one.
      height: of the page below a notebook's cell, in pixels.
    """
    session = targets.open_session(
        target,
        checkpoint=checkpoint,
        training_step=training_step,
        index=index,
        tokenizer=tokenizer,
        split=split,
        storage_options=storage_options,
    )
    return View(session, host=host, port=port, height=height)


def run(options: argparse.Namespace, source_options: dict[str, Any]) -> int:
    """Serve the page until Ctrl-C."""
    attached = None if options.attach is None else Attachment(options.attach)
    if options.target is None:
        if attached is None:
            raise ValueError("Name a target, or a running program with --attach.")
        session = Session(None, target=attached.name, attached=attached)
    else:
        session = open_session(
            options.target,
            checkpoint=options.checkpoint,
            training_step=options.training_step,
            index=options.index,
            tokenizer=options.tokenizer,
            split=options.split,
            storage_options=source_options,
            arguments=options.script_arguments,
        )
        session.attached = attached
    if options.rerun is not None:
        return _export(session, options)
    server = Server(session, host=options.host, port=options.port)
    print(f"{session.target} at {server.url}\nCtrl-C ends it.", flush=True)
    if options.host not in ("127.0.0.1", "localhost", "::1"):
        print("Other machines can reach this page. Whoever has the address can read the data.", file=sys.stderr)
    if not options.no_browser:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
    return 0


def _export(session: Session, options: argparse.Namespace) -> int:
    """Write a file for the Rerun viewer instead of serving a page."""
    path = options.rerun or f"{os.path.basename(options.target.rstrip('/')).partition(':')[0]}.rrd"
    elements = None if options.limit is None else range(session.start, session.start + options.limit)
    try:
        written = to_rerun(session, path, elements=elements)
    finally:
        session.close()
    print(f"{written.elements:,} elements in {path}. `rerun {path}` shows them.")
    return 0
