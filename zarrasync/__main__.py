"""``python -m zarrasync`` runs the command ``zarrasync``."""

import sys

from zarrasync.cli import main

sys.exit(main())
