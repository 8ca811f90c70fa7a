"""Tensors as the native side takes them, and which ones it does not take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: The types of weights and gradients, by their names on the native side.
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}

#: Address, type, shape, and strides unless the elements lie in row-major order.
Described = tuple[int, str, Sequence[int], Sequence[int] | None]


def described(tensor: Tensor) -> Described:
    """Returns where the elements of a tensor lie. Whoever calls this keeps it alive."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    return (tensor.data_ptr(), NAMES[tensor.dtype], tuple(tensor.shape), strides)


def check_parameter(param: Tensor, name: str) -> None:
    """Refuses a parameter that cannot be trained from host memory."""
    kind = type(param)
    if kind.__module__.startswith("torch.distributed") or hasattr(param, "_fsdp_flattened"):
        raise ValueError(
            f"parameter {name} is sharded over ranks ({kind.__module__}.{kind.__qualname__}): FSDP "
            "and DTensor are not supported yet; give the optimizer whole parameters"
        )
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise ValueError(
            f"parameter {name} is a {kind.__module__}.{kind.__qualname__}, whose elements are not "
            "its own; give the optimizer plain parameters"
        )
    if param.device.type != "cpu":
        raise ValueError(
            f"parameter {name} is on {param.device}; weights on other devices than the CPU are not "
            "supported yet: move the model to the CPU before it is given to the optimizer"
        )
    if param.layout is not torch.strided:
        raise ValueError(f"parameter {name} has the layout {param.layout}; use torch.strided")
    if param.dtype not in NAMES:
        raise ValueError(
            f"parameter {name} is of {param.dtype}; use torch.float32, torch.bfloat16 or "
            "torch.float16"
        )


def check_gradient(param: Tensor, gradient: Tensor, name: str) -> Tensor:
    """Returns a gradient in the form in which it can be handed over."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"the gradient of {name} has the layout {gradient.layout}: sparse gradients are not "
            "supported; nothing was changed"
        )
    if gradient.device.type != "cpu":
        raise ValueError(f"the gradient of {name} is on {gradient.device}; it has to be on the CPU")
    if gradient.dtype not in NAMES:
        raise ValueError(
            f"the gradient of {name} is of {gradient.dtype}; use torch.float32, torch.bfloat16 or "
            "torch.float16"
        )
    if gradient.shape != param.shape:
        raise ValueError(
            f"the gradient of {name} has the shape {tuple(gradient.shape)}, and the parameter "
            f"{tuple(param.shape)}"
        )
    return gradient.resolve_neg()
