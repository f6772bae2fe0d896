"""`bushel.experimental`, where Grain's older programs look for it."""

from bushel.experimental import *  # noqa: F403
from bushel.experimental import __all__ as __all__
