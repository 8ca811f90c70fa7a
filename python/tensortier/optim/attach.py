"""Gradients that are taken as soon as the backward pass has made them."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch
from torch import Tensor

from tensortier.optim.owner import Owner
from tensortier.optim.tensors import NAMES, check_gradient, described


def refuse_distributed() -> None:
    """Refuses where gradients are summed over ranks only after a hook has seen them."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        raise RuntimeError(
            "attach() cannot be used under DistributedDataParallel or FSDP: the hooks see gradients "
            "before they are reduced over the ranks (torch.distributed is initialized). Without "
            "attach(), step() takes the reduced gradients from .grad"
        )


def refuse_scaler() -> NoReturn:
    """Refuses a step of torch's GradScaler, which has seen none of the gradients."""
    raise RuntimeError(
        "GradScaler cannot be used with attach(): it looks for gradients that are not finite in .grad, "
        "which is empty by then. Call detach() and zero_grad(), or train in bfloat16, which needs no "
        "scaler. Nothing was changed"
    )


class Attachment:
    """Hooks on the parameters of an optimizer that hand gradients over and free them."""

    def __init__(self, optimizer: Owner, accumulate: str, in_store: bool) -> None:
        # Parameters own their hooks: they shall not keep the optimizer.
        self._optimizer = weakref.ref(optimizer)
        self._hooks: list[Any] = []
        if accumulate not in ("same", "fp32"):
            raise ValueError(f'accumulate is {accumulate!r}; use "same" or "fp32"')
        types = {param.dtype for param in optimizer._params()}
        same = accumulate == "same" and len(types) == 1
        self._dtype = types.pop() if same else torch.float32
        self._in_store = in_store

    def open(self, native: Any) -> None:
        """Tells a native optimizer how to keep what comes."""
        native.set_accumulation(NAMES[self._dtype], self._in_store)

    def add(self, first: int, params: list[Tensor]) -> None:
        """Watches parameters, the first of which has this number."""
        for index, param in enumerate(params, first):
            if param.requires_grad:
                hook = param.register_post_accumulate_grad_hook(self._hook(index))
                self._hooks.append(hook)

    def remove(self) -> None:
        """Watches nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook(self, index: int) -> Any:
        def take(param: Tensor) -> None:
            optimizer = self._optimizer()
            # One without elements is as well left where it is, where its step is seen to count.
            if optimizer is None or param.grad is None or param.numel() == 0:
                return
            refuse_distributed()
            native, name = optimizer._open(), optimizer._name(index)
            optimizer._known[index].check(param, name)
            gradient = check_gradient(param, param.grad.detach(), name)
            if gradient.dtype is not self._dtype and self._dtype is not torch.float32:
                raise ValueError(
                    f"the gradient of {name} is of {gradient.dtype}, and gradients are summed in "
                    f'{self._dtype}; use attach(accumulate="fp32")'
                )
            native.accumulate(index, described(gradient))
            param.grad = None

        return take
