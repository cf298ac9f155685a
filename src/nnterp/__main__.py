"""``python -m nnterp`` is the ``nnterp`` command."""

import sys

from nnterp.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
