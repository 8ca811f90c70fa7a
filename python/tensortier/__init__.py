"""A tiered tensor store, and an offloaded Adam/AdamW for torch on top of it."""

from tensortier._tensortier import ClosedError, CorruptError
from tensortier.store import Store

__all__ = ["ClosedError", "CorruptError", "Store"]
