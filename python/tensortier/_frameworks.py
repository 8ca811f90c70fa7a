"""What people get: new memory of the framework they use, and views of the store's own."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tensortier import _tensortier
from tensortier._memory import Memory, writable
from tensortier.view import View

FRAMEWORKS = ("torch", "numpy", "bytes")


def checked(framework: str | None) -> str | None:
    """Returns a framework's name.

    Raises:
        ValueError: It is none.
    """
    if framework is not None and framework not in FRAMEWORKS:
        raise ValueError(f"framework is {framework!r}; it can be one of {', '.join(FRAMEWORKS)}")
    return framework


def loaded() -> str:
    """Returns the framework that this process has loaded, torch before numpy; "bytes" if none."""
    return next((name for name in ("torch", "numpy") if sys.modules.get(name)), "bytes")


def empty(framework: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[Any, Memory]:
    """Returns a new tensor whose bytes are still to be filled, and its memory.

    Raises:
        ImportError: The framework is not installed.
        TypeError: It has no such elements.
    """
    if framework == "torch":
        tensor = _torch().empty(shape, dtype=_torch_dtype(dtype))
    elif framework == "numpy":
        tensor = importlib.import_module("numpy").empty(shape, dtype=_numpy_dtype(dtype))
    else:
        tensor = bytearray(nbytes)
    return tensor, writable(tensor)


def written(tensor: object) -> None:
    """Has autograd know that a tensor was overwritten behind its back."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def viewed(framework: str, view: View) -> Any:
    """Returns a view as a tensor of a framework, without a copy; for "bytes" the view itself."""
    if framework == "torch":
        torch = _torch()
        # As bytes, since older DLPack does not know all types.
        return torch.from_dlpack(view._bytes()).view(_torch_dtype(view.dtype)).reshape(view.shape)
    if framework == "numpy":
        numpy = importlib.import_module("numpy")
        flat = numpy.frombuffer(view.memoryview(), dtype=numpy.uint8)
        return flat.view(_numpy_dtype(view.dtype)).reshape(view.shape)
    return view


def _torch() -> Any:
    return importlib.import_module("torch")


def _torch_dtype(dtype: str) -> Any:
    found = getattr(_torch(), dtype, None)
    if found is None:
        raise TypeError(f"this torch has no {dtype}; ask for framework='numpy' or 'bytes'")
    return found


def _numpy_dtype(dtype: str) -> Any:
    """Returns numpy's type; without ml_dtypes an unsigned one as wide, for what numpy has not."""
    numpy = importlib.import_module("numpy")
    if dtype == "bfloat16" or dtype.startswith("float8"):
        try:
            return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), dtype))
        except ImportError:
            _, width = _tensortier.dtype_named(dtype)
            return numpy.dtype(f"uint{8 * width}")
    return numpy.dtype(dtype)
