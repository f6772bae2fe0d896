"""`bushel.view`: the page of a data set, served by a thread of this process."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from bushel.view import targets
from bushel.view.session import Session


class View:
    """A page that is being served. A notebook shows it below the cell.

    >>> import bushel
    >>> with bushel.view(bushel.MapDataset.range(10)) as page:
    ...     page.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, session: Session, *, host: str = "127.0.0.1", port: int = 0, height: int = 720):
        from bushel.view.server import Server

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
        """Stops the server. Closing again does nothing."""
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
    """Serves a page that shows a data set. It returns at once; `close()` ends it. This needs the extra `view`.

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
