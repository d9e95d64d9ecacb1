"""Run the `sharpmax` command with `python -m sharpmax`."""

import sys

from sharpmax.cli import main

sys.exit(main())
