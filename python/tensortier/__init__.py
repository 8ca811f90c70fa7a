"""A tiered tensor store, and an offloaded Adam/AdamW for torch on top of it.

Importing this imports neither torch nor numpy.
"""

from tensortier._settings import Path
from tensortier.errors import BatchError, ClosedError, CorruptError
from tensortier.futures import Future
from tensortier.store import Explanation, Stat, Store
from tensortier.view import Pin, View

__all__ = [
    "BatchError",
    "ClosedError",
    "CorruptError",
    "Explanation",
    "Future",
    "Path",
    "Pin",
    "Stat",
    "Store",
    "View",
]
