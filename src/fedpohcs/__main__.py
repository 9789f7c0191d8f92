"""`python -m fedpohcs` is the command line."""

import sys

from fedpohcs.cli import main

if __name__ == "__main__":
    sys.exit(main())
