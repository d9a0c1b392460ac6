"""``python -m zarrasync``: the command of the same name."""

import sys

from zarrasync.cli import main

sys.exit(main())
