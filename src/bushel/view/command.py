"""The command `bushel view`."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from typing import Any

from bushel.view.server import Server
from bushel.view.targets import open_session


def run(options: argparse.Namespace, source_options: dict[str, Any]) -> int:
    """Serves the page until Ctrl-C."""
    session = open_session(
        options.target,
        checkpoint=options.checkpoint,
        training_step=options.step,
        start=options.at,
        tokenizer=options.tokenizer,
        split=options.split,
        options=source_options,
    )
    server = Server(session, host=options.host, port=options.port)
    print(f"{options.target} at {server.url}\nCtrl-C ends it.", flush=True)
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
