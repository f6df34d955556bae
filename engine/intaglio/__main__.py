"""`python -m intaglio` is the `intaglio` command."""

import sys

from intaglio.cli import main

if __name__ == "__main__":
    sys.exit(main())
