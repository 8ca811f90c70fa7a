"""What a store is opened with: paths, sizes, rates, each checked as soon as it is given."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex, Union

from tensortier import _tensortier

Size = Union[int, str]
"""A number of bytes: an int, or text such as "512MiB" or "1.5GB"."""


def size(value: SupportsIndex | str, what: str) -> int:
    """Reads a size.

    Raises:
        ValueError: It is negative, or text that is no size.
        TypeError: It is neither a whole number nor text.
    """
    if isinstance(value, str):
        return _tensortier.parse_size(value)
    bytes_ = whole(value, what)
    if not 0 <= bytes_ < 1 << 63:
        raise ValueError(f"{what} is {bytes_}; it must be 0 bytes or more, and below 2**63")
    return bytes_


def rate(value: float | str, what: str) -> float:
    """Reads a rate in bytes per second.

    Raises:
        ValueError: It is not above 0, or text that is no rate.
    """
    if isinstance(value, str):
        return _tensortier.parse_rate(value)
    per_second = float(value)
    if not 1.0 <= per_second < float("inf"):
        raise ValueError(f"{what} is {value}; it must be at least 1 byte per second")
    return per_second


def whole(value: SupportsIndex, what: str) -> int:
    """Reads a whole number.

    Raises:
        TypeError: It is none; True and False are not either.
    """
    if isinstance(value, bool):
        raise TypeError(f"{what} is {value}; it must be a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; it must be a whole number") from None


def shape(value: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Reads a shape; a single number is not one.

    Raises:
        ValueError: An extent is negative.
    """
    extents = tuple(whole(extent, "an extent") for extent in value)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"the shape {extents} has a negative extent")
    return extents


def processes(value: SupportsIndex | str) -> int:
    """Reads a number of processes.

    Raises:
        ValueError: It is below 1, more than 32 bits, or another word than "auto" and "any".
    """
    if isinstance(value, str):
        raise ValueError(f'max_processes is {value!r}; it can be a number, "any" or "auto"')
    count = whole(value, "max_processes")
    if not 1 <= count < 1 << 32:
        raise ValueError(f"max_processes is {count}; it must be from 1 to {(1 << 32) - 1}")
    return count


@dataclass(frozen=True)
class Path:
    """A directory to keep bytes in, and how to treat it.

    Args:
        dir: The directory; it must exist. The store makes one of its own inside.
        kind: "nvme" for a local drive, "remote" for a network or parallel file system.
        read: At most this much is read per second, on average: bytes, or text such as "1.5GB/s".
        write: At most this much is written per second, on average.
        quota: At most this much space is taken in files.
        deadline: How many seconds it may be silent with transfers in flight before it counts as
            hung; by default 30, and 120 for a remote one.
        max_processes: How many processes of this user on this machine use its device at one time,
            first come, first served; "any" for as many as there are. "auto" finds out what pays,
            beginning with one, on a remote path and on a disk that rotates, and is "any" on others.

    Raises:
        ValueError: A size, a rate, a kind or a number of processes cannot be read.
    """

    dir: str | os.PathLike[str]
    kind: str = "nvme"
    read: float | str | None = None
    write: float | str | None = None
    quota: Size | None = None
    deadline: float | None = None
    max_processes: int | str = "auto"

    def __post_init__(self) -> None:
        known = {
            "dir": os.fspath(self.dir),
            "read": None if self.read is None else rate(self.read, "read"),
            "write": None if self.write is None else rate(self.write, "write"),
            "quota": None if self.quota is None else size(self.quota, "quota"),
            "deadline": None if self.deadline is None else float(self.deadline),
        }
        if self.kind not in ("nvme", "remote"):
            raise ValueError(f'kind is {self.kind!r}; it can be "nvme" or "remote"')
        if self.max_processes not in ("auto", "any"):
            known["max_processes"] = processes(self.max_processes)
        for name, value in known.items():
            object.__setattr__(self, name, value)


def paths(given: object) -> list[Path]:
    """Reads one path or several."""
    if isinstance(given, (str, os.PathLike, Path)):
        given = [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"paths is {given!r}; give directories, or tensortier.Path")
    return [path if isinstance(path, Path) else Path(path) for path in given]


@dataclass(frozen=True)
class Settings:
    """A store's settings as the native part reads them."""

    host_memory: int
    chunk_size: int
    paths: list[Path]
    engine: str
    placement: str
    checksums: bool
    compression: str
    packing_memory: int
    cache: bool
    wait_for_leases: float
