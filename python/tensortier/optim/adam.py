"""Adam and AdamW of torch, with their state in a store instead of in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tensortier.optim.offloaded import Offloaded
from tensortier.store import Store


class Adam(Offloaded):
    """``torch.optim.Adam`` with its state in a store.

    The arguments up to ``decoupled_weight_decay`` are torch's; ``foreach``, ``capturable`` and
    ``fused`` are taken and have no meaning here. The results are those of ``fused=True``.

    Args:
        store: A :class:`tensortier.Store` for the state.
        host_memory: The part of the store's memory that this optimizer plans with: bytes, or text
            such as ``"2GiB"``. Without it that is all of it, so give it to each optimizer of a store
            that has several, or other objects. Without a store it is the memory of one that the
            optimizer has for itself.
        paths: Instead of a store: the directories of one that the optimizer has for itself.
        state: ``"auto"`` keeps an fp32 master beside 16-bit weights and takes fp32 weights for their
            own master. ``"fp32"`` keeps an fp32 master beside all weights. ``"split"`` takes bf16
            weights for the upper half of their master and stores the lower one, which is as exact and
            takes 10 bytes instead of 12; such weights must not be changed but by the optimizer, or
            :meth:`refresh_masters` be called.
        non_finite: What becomes of gradients that are infinite or not a number: ``"apply"`` applies
            them as torch does, ``"skip"`` skips the step, ``"raise"`` raises ``FloatingPointError``.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        store: Store | None = None,
        host_memory: int | str | None = None,
        paths: Any = None,
        state: str = "auto",
        non_finite: str = "apply",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": self._decoupled or decoupled_weight_decay,
        }
        super().__init__(
            params,
            defaults,
            store=store,
            host_memory=host_memory,
            paths=paths,
            state=state,
            non_finite=non_finite,
        )


class AdamW(Adam):
    """``torch.optim.AdamW`` with its state in a store; see :class:`Adam` for the arguments."""

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        store: Store | None = None,
        host_memory: int | str | None = None,
        paths: Any = None,
        state: str = "auto",
        non_finite: str = "apply",
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            store=store,
            host_memory=host_memory,
            paths=paths,
            state=state,
            non_finite=non_finite,
        )
