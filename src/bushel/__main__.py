"""`python -m bushel`: the command `bushel`."""

import sys

from bushel._src.cli import main

if __name__ == "__main__":
    sys.exit(main())
