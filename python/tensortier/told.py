"""What a store tells of an object and of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stat:
    """What is known of an object at one moment."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    chunk_size: int
    chunks: int
    host_bytes: int
    """How many of its bytes are in memory."""
    stored_bytes: int
    """How many have their newest version on a path."""
    reproducible: bool
    dropped_bytes: int
    """How many were dropped, as is agreed for a reproducible object."""


class Explanation(dict[str, Any]):
    """What a store chose, for each path and why: a dict, and text for people by `str()`."""

    def __init__(self, text: str, known: dict[str, Any]) -> None:
        super().__init__(known)
        self._text = text

    def __str__(self) -> str:
        return self._text
