"""The hyper-parameters of a group: as the native side takes them, and which make no sense."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

#: Decoupled, lr, beta1, beta2, eps, weight decay, amsgrad, maximize.
Numbers = tuple[bool, float, float, float, float, float, bool, bool]


def numbers_of(group: Mapping[str, Any]) -> Numbers:
    """Returns the hyper-parameters of a group as the native side takes them."""
    betas = group["betas"]
    if not isinstance(betas, Iterable) or len(pair := list(betas)) != 2:
        raise ValueError(f"betas is {betas!r}; it must be two numbers")
    return (
        bool(group["decoupled_weight_decay"]),
        _number("lr", group["lr"]),
        _number("betas", pair[0]),
        _number("betas", pair[1]),
        _number("eps", group["eps"]),
        _number("weight_decay", group["weight_decay"]),
        bool(group["amsgrad"]),
        bool(group["maximize"]),
    )


def _number(key: str, value: Any) -> float:
    # Text would do here, and nowhere else: not in a scheduler, not in another optimizer.
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except TypeError:
            pass
    raise TypeError(f"{key} has {value!r}; it must be a number")


def check_numbers(group: Mapping[str, Any]) -> None:
    """Refuses hyper-parameters as torch does."""
    for key in ("lr", "betas"):
        values = group[key] if isinstance(group[key], (list, tuple)) else (group[key],)
        if any(isinstance(value, Tensor) and value.numel() != 1 for value in values):
            raise ValueError(f"Tensor {key} must be 1-element")
    _, lr, beta1, beta2, eps, weight_decay, _, _ = numbers_of(group)
    for text, value in (
        ("learning rate", lr),
        ("epsilon value", eps),
        ("weight_decay value", weight_decay),
    ):
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"Invalid {text}: {value}")
    for index, beta in enumerate((beta1, beta2)):
        if not 0 <= beta < 1:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if group["differentiable"]:
        raise ValueError("differentiable=True is not supported: no gradient goes through a store")
