"""The report of a running iterator, for programs that look at it from outside: `bushel.serve_report`."""
