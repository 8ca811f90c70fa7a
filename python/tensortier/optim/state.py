"""The state of an optimizer as torch shows it: mappings that read from the store on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from tensortier.optim.owner import Owner
from tensortier.optim.tensors import described

#: What torch keeps of a parameter, in its order, and the one key that is ours.
PLANES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master_param")


class ParamState(Mapping[str, Tensor]):
    """The state of one parameter. Each access reads a copy from the store."""

    def __init__(self, native: Any, param: Tensor, index: int) -> None:
        self._native = native
        self._param = param
        self._index = index
        stored = native.planes()[index]
        self._planes = tuple(plane for plane in PLANES if plane in stored)
        self.updates: int = native.updates()[index]

    def __getitem__(self, key: str) -> Tensor:
        if key == "step":
            return torch.tensor(float(self.updates))
        if key not in self._planes:
            raise KeyError(key)
        param = self._param
        flat = self.read(key, 0, param.numel())
        if param.is_contiguous():
            return flat.view(param.shape)
        # As torch has it: laid out like the weights.
        like = torch.empty_like(param, dtype=torch.float32, requires_grad=False)
        return like.copy_(flat.view(param.shape))

    def __contains__(self, key: object) -> bool:
        # Without reading it.
        return key == "step" or key in self._planes

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "this state reads from the store on access: it is neither copied nor pickled. Use "
            "state_dict() without lazy, or dict() of it"
        )

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Returns elements of one key, in row-major order, as a vector."""
        out = torch.empty(stop - start, dtype=torch.float32)
        weights = None
        if key == "master_param":
            weights = self._param.detach().reshape(-1)[start:stop]
        taken = None if weights is None else described(weights)
        self._native.read(self._index, key, start, described(out), taken)
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(("step", *self._planes))

    def __len__(self) -> int:
        return 1 + len(self._planes)

    def __repr__(self) -> str:
        shape = tuple(self._param.shape)
        return f"<state of a parameter of shape {shape}, in the store: {', '.join(self)}>"


class StateView(Mapping[Tensor, Mapping[str, Tensor]]):
    """``optimizer.state``: the parameters that were updated, each with its :class:`ParamState`."""

    def __init__(self, optimizer: Owner) -> None:
        self._optimizer = optimizer

    def __setitem__(self, param: object, value: object) -> NoReturn:
        raise TypeError("the state lives in the store; use load_state_dict() to change it")

    def _updates(self) -> list[int]:
        self._optimizer._refuse_closed()
        native = self._optimizer._native
        return [] if native is None else native.updates()

    def __getitem__(self, param: Tensor) -> Mapping[str, Tensor]:
        for index, known in enumerate(self._optimizer._params()):
            if known is param:
                updates = self._updates()
                if index < len(updates) and updates[index] > 0:
                    return ParamState(self._optimizer._native, param, index)
                # What torch has of one that was never updated.
                return {}
        raise KeyError("not a parameter of this optimizer")

    def __contains__(self, param: object) -> bool:
        return any(known is param for known in self)

    def __iter__(self) -> Iterator[Tensor]:
        for param, updates in zip(self._optimizer._params(), self._updates()):
            if updates > 0:
                yield param

    def __len__(self) -> int:
        return sum(updates > 0 for updates in self._updates())

    def __repr__(self) -> str:
        if self._optimizer._closed:
            return "<state of a closed optimizer>"
        return f"<state of {len(self)} parameters, in the store>"


def packed(optimizer: Owner, lazy: bool) -> dict[str, Any]:
    """Returns the state and the groups of an optimizer in torch's layout."""
    first = 0
    groups = []
    for group in optimizer.param_groups:
        ids = list(range(first, first + len(group["params"])))
        first += len(ids)
        known = {key: value for key, value in group.items() if key != "params"}
        groups.append({**known, "params": ids})
    native = optimizer._native
    if native is not None:
        native.refuse_unfinished()
    state: dict[int, Any] = {}
    for index, param in enumerate(optimizer._params()) if native is not None else ():
        one = ParamState(native, param, index)
        if one.updates > 0:
            state[index] = one if lazy else dict(one)
    return {"state": state, "param_groups": groups}
