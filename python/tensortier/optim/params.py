"""The parameters of groups: their names, and what the native side is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tensortier.optim.tensors import NAMES, check_parameter


def names_of(groups: Sequence[Mapping[str, Any]], first: int = 0) -> list[str]:
    """Returns the parameters' names: those they were given, or torch's ids, counted from `first`."""
    names: list[str] = []
    for group in groups:
        count = first + len(names)
        ids = (str(count + index) for index in range(len(group["params"])))
        names.extend(group.get("param_names", ids))
    return names


def new_params(
    groups: Sequence[Mapping[str, Any]], first: int = 0
) -> list[tuple[str, tuple[int, ...], str, int]]:
    """Returns parameters as the native side takes them, after a look at them."""
    names = iter(names_of(groups, first))
    new = []
    for number, group in enumerate(groups):
        for param in group["params"]:
            name = next(names)
            check_parameter(param, name)
            new.append((name, tuple(param.shape), NAMES[param.dtype], number))
    return new


def index_of(name: str | Tensor, params: Sequence[Tensor], names: Sequence[str]) -> int:
    """Returns the number of a parameter.

    Raises:
        KeyError: There is none of this name.
    """
    if isinstance(name, Tensor):
        found = [index for index, param in enumerate(params) if param is name]
    else:
        found = [index for index, known in enumerate(names) if known == name]
    if not found:
        shown = "a tensor" if isinstance(name, Tensor) else repr(name)
        raise KeyError(f"{shown} is no parameter of this optimizer")
    return found[0]
