"""Helpers of this folder are imported by their plain name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
