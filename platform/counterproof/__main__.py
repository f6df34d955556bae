"""`python -m counterproof` is the `counterproof` command."""

import sys

from counterproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
