"""The command `bushel view`."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from typing import Any

from bushel._src.view.attachment import Attachment
from bushel._src.view.rerun_export import to_rerun
from bushel._src.view.server import Server
from bushel._src.view.session import Session
from bushel._src.view.targets import open_session


def run(options: argparse.Namespace, source_options: dict[str, Any]) -> int:
    """Serves the page until Ctrl-C."""
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
    """Writes a file for the Rerun viewer instead of serving a page."""
    path = options.rerun or f"{os.path.basename(options.target.rstrip('/')).partition(':')[0]}.rrd"
    elements = None if options.limit is None else range(session.start, session.start + options.limit)
    try:
        written = to_rerun(session, path, elements=elements)
    finally:
        session.close()
    print(f"{written.elements:,} elements in {path}. `rerun {path}` shows them.")
    return 0
