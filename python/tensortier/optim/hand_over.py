"""What a step is handed: where each parameter and its gradient lie, looked at before any change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from tensortier.optim.tensors import check_gradient, check_parameter, described


def hand_over(
    params: Iterable[Tensor], names: Sequence[str], taken: Sequence[bool]
) -> tuple[list[Any], list[Tensor], list[Tensor]]:
    """Returns what the step is handed, whose weights it changes, and what has to live meanwhile.

    `taken` says of which parameters a gradient came before.
    """
    rows: list[Any] = []
    active, alive = [], []
    stored = itertools.chain(taken, itertools.repeat(False))
    for param, name, before in zip(params, names, stored):
        gradient: Any = True if before else None
        if param.grad is not None:
            if before:
                raise RuntimeError(
                    f"a gradient of {name} was handed over during the backward pass, and there "
                    "is another one in .grad; call zero_grad() and begin anew"
                )
            given = check_gradient(param, param.grad, name)
            alive.append(given)
            gradient = described(given)
        if gradient is not None:
            check_parameter(param, name)
            active.append(param)
            rows.append((described(param), gradient))
        else:
            rows.append(((0, "F32", (0,), None), None))
    return rows, active, alive
