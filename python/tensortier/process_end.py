"""Stores that are still open when their process ends or forks."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol

from tensortier import futures

_AT_EXIT = 3.0
"""How many seconds the stores that are still open take at most when the process ends."""


class Closing(Protocol):
    """What is closed at the end."""

    def close(self, timeout: float) -> None:
        """Closes it, within so many seconds."""


_open: weakref.WeakSet[Closing] = weakref.WeakSet()


def opened(store: Closing) -> None:
    """Has a store closed at the end of the process."""
    _open.add(store)


def closed(store: Closing) -> None:
    """A store was closed before."""
    _open.discard(store)


def _forget_parent() -> None:
    """The stores of a parent are not a forked child's to close."""
    global _open
    _open = weakref.WeakSet()


def _end() -> None:
    """Closes what is still open when the process ends, and the thread that tells results."""
    until = time.monotonic() + _AT_EXIT
    for store in [*_open]:
        try:
            store.close(max(0.1, until - time.monotonic()))
        except Exception:
            # The process is ending; what stays behind is listed by `tensortier ls`.
            pass
    futures.stop(1.0)


os.register_at_fork(after_in_child=_forget_parent)
atexit.register(_end)
