"""A tiered tensor store, and an offloaded Adam/AdamW for torch on top of it."""

from typing import Any

from tensortier._tensortier import ClosedError, CorruptError, HalfLoaded, StepInterrupted
from tensortier.store import Store

__all__ = [
    "Adam",
    "AdamW",
    "ClosedError",
    "CorruptError",
    "HalfLoaded",
    "StepInterrupted",
    "StepReport",
    "Store",
]


def __getattr__(name: str) -> Any:
    # These need torch, and whoever has no torch has use for the rest.
    if name in ("Adam", "AdamW", "StepReport"):
        from tensortier import optim

        return getattr(optim, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
