"""`python -m sharpmax` is the `sharpmax` command."""

import sys

from sharpmax.cli import main

sys.exit(main())
