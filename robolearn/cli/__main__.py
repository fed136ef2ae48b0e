"""``python -m robolearn.cli`` is ``robolearn``."""

import sys

from robolearn.cli import main

sys.exit(main())
