"""Taking a state_dict of torch's layout: all of it is looked at before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from tensortier.optim.numbers import check_numbers
from tensortier.optim.state import PLANES, ParamState
from tensortier.optim.tensors import Described, described

#: What a group has to have.
NUMBERS = ("lr", "betas", "eps", "weight_decay")


def new_groups(
    known: Sequence[dict[str, Any]],
    saved: Sequence[Mapping[str, Any]],
    defaults: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns the saved groups with the parameters that are here, and the saved ids in order.

    What a group has not is as in `defaults`, and what is in `fixed` is so whatever it has.
    """
    if len(known) != len(saved):
        raise ValueError("loaded state dict has a different number of parameter groups")
    groups, ids = [], []
    for number, (here, group) in enumerate(zip(known, saved)):
        if len(here["params"]) != len(group["params"]):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                f"optimizer's group: group {number} has {len(group['params'])} parameters, and "
                f"{len(here['params'])} here"
            )
        missing = [key for key in NUMBERS if key not in group]
        if missing:
            raise KeyError(f"group {number} of the loaded state dict has no {', '.join(missing)}")
        ids.extend(group["params"])
        taken = deepcopy({key: value for key, value in group.items() if key != "params"})
        taken = {**defaults, **taken, **fixed, "params": here["params"]}
        if "param_names" in here:
            taken.setdefault("param_names", here["param_names"])
        check_numbers(taken)
        groups.append(taken)
    return groups, ids


def check_state(
    state: Mapping[Any, Any], ids: Sequence[Any], groups: Sequence[dict[str, Any]]
) -> list[Mapping[str, Any] | None]:
    """Returns the saved state of each parameter, if it has any."""
    extra = [key for key in state if key not in ids]
    if extra:
        raise ValueError(f"loaded state dict has state of {extra[0]!r}, which is no parameter of it")
    params = [(param, group) for group in groups for param in group["params"]]
    return [_checked(state.get(key), key, *of) for key, of in zip(ids, params)]


def _checked(
    entry: Any, key: Any, param: Tensor, group: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    if entry is None or len(entry) == 0:
        return None
    of = f"the loaded state of parameter {key!r}"
    wanted = {"step", "exp_avg", "exp_avg_sq"}
    if group.get("amsgrad", False):
        wanted.add("max_exp_avg_sq")
    missing = sorted(wanted - set(entry))
    if missing:
        raise KeyError(f"{of} has no {', '.join(missing)}; nothing was changed")
    extra = sorted(str(name) for name in set(entry) - wanted - {"master_param"})
    if extra:
        raise ValueError(f"{of} has {', '.join(extra)}, which no Adam has; nothing was changed")
    updates = updates_of(entry)
    if not (updates >= 0 and updates == int(updates)):
        raise ValueError(f"{of} has the step {updates}; nothing was changed")
    if isinstance(entry, ParamState):
        shapes = [(name, tuple(entry._param.shape), True) for name in entry if name != "step"]
    else:
        tensors = [(name, entry[name]) for name in PLANES if name in entry]
        strange = [name for name, value in tensors if not isinstance(value, Tensor)]
        if strange:
            raise ValueError(f"{of} has no tensor as {strange[0]}; nothing was changed")
        shapes = [
            (name, tuple(value.shape), value.is_floating_point() and not value.is_meta)
            for name, value in tensors
        ]
    for name, shape, usable in shapes:
        if shape != tuple(param.shape) or not usable:
            raise ValueError(
                f"{of} has {name} of shape {shape}, and the parameter has {tuple(param.shape)}"
                f"{'' if usable else '; it has no floating-point elements'}; nothing was changed"
            )
    return entry if updates > 0 else None


def updates_of(entry: Mapping[str, Any]) -> float:
    """Returns how often a parameter was updated."""
    return entry.updates if isinstance(entry, ParamState) else float(entry["step"])


class Reader:
    """Reads pieces of saved state, converted a parameter at a time where they have to be."""

    def __init__(self, entries: Sequence[Mapping[str, Any] | None]) -> None:
        self._entries = entries
        self._index = -1
        self._flat: dict[str, Tensor] = {}

    def __call__(self, index: int, key: str, start: int, stop: int) -> tuple[Described, Tensor]:
        entry = self._entries[index]
        if entry is None:
            raise KeyError(f"{key} of parameter {index}")
        if isinstance(entry, ParamState):
            part = entry.read(key, start, stop)
        else:
            if index != self._index:
                self._index = index
                self._flat = {}
            if key not in self._flat:
                whole = entry[key].detach().to(device="cpu", dtype=torch.float32)
                self._flat[key] = whole.contiguous().view(-1)
            part = self._flat[key][start:stop]
        return described(part), part
