"""The store: named tensors that live in memory and on any number of storage paths."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tensortier import _tensortier


class Store:
    def __init__(self, host_memory: int, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._native = _tensortier.Store(host_memory, [os.fspath(path) for path in paths])

    def close(self, timeout: float = 10.0) -> None:
        self._native.close(timeout)
