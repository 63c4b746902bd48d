"""Lets ``python -m cli`` be the command ``fracgpu``."""

import sys

from cli.main import main

sys.exit(main())
