"""The toy task of `toys/` is found like one that another package has installed."""

import sys
from pathlib import Path

TOYS = Path(__file__).parent / "toys"
sys.path.insert(0, str(TOYS))
