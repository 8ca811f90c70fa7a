"""A tiered tensor store, and an offloaded Adam/AdamW for torch on top of it.

Importing this imports neither torch nor numpy; `Adam` and `AdamW` import torch when they are first
asked for.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tensortier._settings import Path
from tensortier._tensortier import HalfLoaded, StepInterrupted
from tensortier.errors import BatchError, ClosedError, CorruptError
from tensortier.futures import Future
from tensortier.pin import Pin
from tensortier.store import Store
from tensortier.told import Explanation, Stat
from tensortier.view import View

if TYPE_CHECKING:
    from tensortier.optim import Adam, AdamW, StepReport
    from tensortier.spill import spill_activations

__all__ = [
    "BatchError",
    "ClosedError",
    "CorruptError",
    "Explanation",
    "Future",
    "HalfLoaded",
    "Path",
    "Pin",
    "Stat",
    "StepInterrupted",
    "Store",
    "View",
]
# What needs torch is loaded at its first use, and is no part of `import *` where there is none.
if find_spec("torch") is not None:
    __all__ += ["Adam", "AdamW", "StepReport", "spill_activations"]


def __getattr__(name: str) -> Any:
    if name in ("Adam", "AdamW", "StepReport"):
        from tensortier import optim

        return getattr(optim, name)
    if name == "spill_activations":
        from tensortier import spill

        return spill.spill_activations
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
