"""Views of a store's memory without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from tensortier import _tensortier

_Bytes = memoryview

_CPU = (1, 0)

_TYPESTR = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "float16": "<f2",
    "uint32": "<u4",
    "int32": "<i4",
    "float32": "<f4",
    "uint64": "<u8",
    "int64": "<i8",
    "float64": "<f8",
}


class View:
    """The bytes of an object in a store's memory, read-only and without a copy.

    They stay valid and unchanged as long as anyone holds the view or something made from it, also
    when the object is replaced or deleted and when the store is closed. Meanwhile they take their
    part of the store's budget. A forked child cannot read them.

    A view is made a tensor of a framework by DLPack (`torch.from_dlpack`, `numpy.from_dlpack`,
    `jax.dlpack.from_dlpack`), by `numpy.asarray`, or by `memoryview()`.

    Attributes:
        dtype: The name of the type of the elements.
        shape: The extents in elements.
        nbytes: The length in bytes.
    """

    __slots__ = ("_pinned", "dtype", "shape", "nbytes")

    def __init__(self, pinned: _tensortier.Pinned, dtype: str, shape: tuple[int, ...]) -> None:
        self._pinned = pinned
        self.dtype = dtype
        self.shape = shape
        self.nbytes = pinned.nbytes

    def memoryview(self) -> _Bytes:
        """Returns the bytes as a read-only memoryview."""
        memory = (ctypes.c_ubyte * self.nbytes).from_address(self._pinned.address)
        # The array is what the memoryview, and all that is made from it, holds on to.
        memory._pinned = self._pinned  # type: ignore[attr-defined]
        return memoryview(memory).cast("B").toreadonly()

    def __buffer__(self, flags: int) -> _Bytes:
        return self.memoryview()

    def __bytes__(self) -> bytes:
        return bytes(self.memoryview())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a view of a scalar has no length")
        return self.shape[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != _CPU:
            raise BufferError(f"the bytes are in host memory, not on device {dl_device}")
        if copy:
            raise BufferError("a view makes no copy; use Store.get for one")
        versioned = max_version is not None and max_version[0] >= 1
        return self._pinned.dlpack(self.dtype, self.shape, versioned)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.dtype not in _TYPESTR:
            raise AttributeError(f"__array_interface__ has no {self.dtype}; use memoryview()")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": _TYPESTR[self.dtype],
            "data": (self._pinned.address, True),
            "strides": None,
        }

    def __repr__(self) -> str:
        return f"View(dtype={self.dtype!r}, shape={self.shape})"

    def __reduce__(self) -> Any:
        raise TypeError("a view is memory of this process; pickle a copy of it: Store.get")

    def _bytes(self) -> View:
        """Returns the same memory as a row of bytes."""
        return View(self._pinned, "uint8", (self.nbytes,))
