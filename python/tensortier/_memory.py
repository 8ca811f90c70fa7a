"""What people hand in, as memory: where its bytes are, what they mean, and who owns them.

Nothing here imports torch or numpy: an object of theirs can only come from somebody who has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from tensortier import _settings, _tensortier

ACCEPTED = (
    "torch and numpy tensors in host memory, objects of the buffer protocol (bytes, bytearray, "
    "memoryview, array, mmap), DLPack (__dlpack__) and __array_interface__"
)

_CPU = 1
_FLOATS = {"e": "float16", "f": "float32", "d": "float64"}


@dataclass(frozen=True)
class Memory:
    """A tensor's bytes. The native part reads all but the last two fields."""

    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int
    framework: str | None
    """Whose object it was: "torch", "numpy", "bytes", or None for some other."""
    owner: object
    """What keeps the bytes where they are."""


def dtype_name(dtype: object) -> str:
    """Returns the name of an element type that is given by name or as torch or numpy has it.

    Raises:
        TypeError: The store does not know it.
    """
    if dtype is None:
        # numpy takes it for float64.
        raise TypeError("None is no element type; name it, as in 'float32'")
    if not isinstance(dtype, str):
        if type(dtype).__module__ == "torch":
            dtype = str(dtype).removeprefix("torch.")
        elif (numpy := sys.modules.get("numpy")) is not None:
            dtype = numpy.dtype(dtype).name
        else:
            raise TypeError(f"{dtype!r} is no element type; name it, as in 'float32'")
    name, _ = _tensortier.dtype_named(str(dtype))
    return name


def readable(
    value: object,
    dtype: object = None,
    shape: Iterable[SupportsIndex] | None = None,
) -> Memory:
    """Returns an object's bytes, to be read; a copy of them if they do not lie in one piece.

    `dtype` and `shape` say what the bytes mean where the object does not.

    Raises:
        TypeError: It has no bytes that can be read, or elements that the store does not know.
        ValueError: `dtype` and `shape` do not fit its length.
    """
    memory = _find(value, writable=False)
    if dtype is None and shape is None:
        return memory
    name = memory.dtype if dtype is None else dtype_name(dtype)
    _, width = _tensortier.dtype_named(name)
    if shape is not None:
        extents = _settings.shape(shape)
    elif name == memory.dtype:
        extents = memory.shape
    elif memory.nbytes % width:
        raise ValueError(f"{memory.nbytes} bytes are no whole number of {name}, of {width} each")
    else:
        extents = (memory.nbytes // width,)
    if math.prod(extents) * width != memory.nbytes:
        raise ValueError(
            f"{memory.nbytes} bytes are not {name} of shape {extents}, which has "
            f"{math.prod(extents) * width}"
        )
    return replace(memory, dtype=name, shape=extents)


def writable(value: object) -> Memory:
    """Returns an object's bytes, to be written.

    Raises:
        TypeError: It has no bytes that can be reached.
        ValueError: It is read-only, or its bytes do not lie in one piece.
    """
    return _find(value, writable=True)


def _find(value: object, writable: bool) -> Memory:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value, writable)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _of_numpy(numpy, value, writable)
    # Before the buffer protocol, which has no bfloat16.
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value, writable)
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        return _of_buffer(view, writable)
    if hasattr(value, "__array_interface__"):
        return _of_interface(value, writable)
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(f"a {type(value).__name__} on a GPU; copy it to host memory first")
    raise TypeError(f"a {type(value).__name__} is no tensor in memory; the store takes {ACCEPTED}")


def _in_pieces() -> ValueError:
    return ValueError("the bytes to be filled do not lie in one piece; use a contiguous tensor")


def _read_only() -> ValueError:
    return ValueError("the memory to be filled is read-only; use a bytearray or a writable tensor")


def _of_torch(torch: Any, tensor: Any, writable: bool) -> Memory:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError("a sparse, nested or quantized tensor; give its dense parts one by one")
    if tensor.is_meta:
        raise TypeError("a tensor on the meta device has no bytes; materialize it first")
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device}; copy it to host memory first: tensor.cpu()")
    dtype = dtype_name(tensor.dtype)
    plain = tensor.detach()
    if writable:
        if not plain.is_contiguous() or plain.is_neg():
            raise _in_pieces()
    else:
        plain = plain.resolve_neg().contiguous()
    nbytes = plain.numel() * plain.element_size()
    return Memory(dtype, tuple(plain.shape), plain.data_ptr(), nbytes, "torch", plain)


def _of_numpy(numpy: Any, value: Any, writable: bool) -> Memory:
    if isinstance(value, numpy.ma.MaskedArray):
        raise TypeError("a masked array; give its .data and its .mask, or what .filled() returns")
    array = numpy.asarray(value)
    dtype = dtype_name(array.dtype)
    if writable:
        if not array.flags.writeable or array is not value and not isinstance(value, numpy.ndarray):
            raise _read_only()
        if not array.flags.c_contiguous or not array.dtype.isnative:
            raise _in_pieces()
    elif not array.flags.c_contiguous or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    address = array.__array_interface__["data"][0]
    return Memory(dtype, array.shape, address, array.nbytes, "numpy", array)


def _of_buffer(view: memoryview, writable: bool) -> Memory:
    dtype, shape = _of_format(view.format, view.itemsize), view.shape or ()
    if writable and view.readonly:
        raise _read_only()
    exporter: object = view
    if not view.c_contiguous:
        if writable:
            raise _in_pieces()
        exporter = view.tobytes()
    buffer = _tensortier.Buffer(exporter, writable)
    return Memory(dtype, shape, buffer.address, buffer.nbytes, "bytes", buffer)


def _of_format(text: str, width: int) -> str:
    """Returns the name of the element type of a format of the struct module."""
    order, code = (text[0], text[1:]) if text[:1] in ("@", "=", "<", ">", "!") else ("@", text)
    swapped = order in (">", "!") if sys.byteorder == "little" else order == "<"
    if not (swapped and width > 1):
        if code == "?":
            return "bool"
        if code in ("c", "B"):
            return "uint8"
        if code and code in "bhilqn":
            return f"int{8 * width}"
        if code and code in "HILQN":
            return f"uint{8 * width}"
        if code in _FLOATS:
            return _FLOATS[code]
    raise TypeError(f"elements of format {text!r} are not known; cast them: memoryview(x).cast('B')")


def _of_dlpack(value: Any, writable: bool) -> Memory:
    kind, index = value.__dlpack_device__()
    if kind != _CPU:
        raise TypeError(f"a tensor on device {kind}:{index}; copy it to host memory first")
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    foreign = _tensortier.Foreign(capsule)
    if writable and foreign.read_only:
        raise _read_only()
    if not foreign.contiguous:
        raise ValueError("the tensor's bytes do not lie in one piece; make it contiguous first")
    shape = tuple(foreign.shape)
    _, width = _tensortier.dtype_named(foreign.dtype)
    nbytes = math.prod(shape) * width
    return Memory(foreign.dtype, shape, foreign.address, nbytes, None, (value, foreign))


def _of_interface(value: Any, writable: bool) -> Memory:
    interface = value.__array_interface__
    data, kind = interface.get("data"), interface["typestr"]
    if not isinstance(data, tuple) or interface.get("strides") is not None:
        raise ValueError("the array's bytes do not lie in one piece; make it contiguous first")
    address, read_only = data
    if writable and read_only:
        raise _read_only()
    names = {"b": "bool", "u": "uint", "i": "int", "f": "float"}
    order, letter, width = kind[0], kind[1], int(kind[2:])
    if letter not in names or (width > 1 and order == ">" and sys.byteorder == "little"):
        raise TypeError(f"elements of type {kind!r} are not known")
    dtype = "bool" if letter == "b" else f"{names[letter]}{8 * width}"
    dtype, shape = dtype_name(dtype), tuple(interface["shape"])
    return Memory(dtype, shape, address, math.prod(shape) * width, None, value)
