"""The parameters of groups: their names, and what the native side is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Known:
    """A parameter as it was when the native side was told of it, by its number."""

    param: Tensor
    shape: tuple[int, ...]
    dtype: Any

    def check(self, param: Tensor, name: str) -> None:
        """Refuses another tensor than this one: its state would be that of this one."""
        if param is not self.param:
            raise RuntimeError(
                f"parameter {name} is another tensor than the one that this optimizer has state of, or "
                "in another place; make a new optimizer, or load_state_dict() into this one: with an "
                "empty state it begins anew. Nothing was changed"
            )

    def check_form(self, name: str) -> None:
        """Refuses other elements than the state is for."""
        has = (tuple(self.param.shape), self.param.dtype)
        if has != (self.shape, self.dtype):
            raise ValueError(
                f"parameter {name} has the shape {has[0]} and elements of {has[1]}, and its state is for "
                f"{self.shape} of {self.dtype}; change a model before its optimizer is made. Nothing was "
                "changed"
            )


def known(groups: Sequence[Mapping[str, Any]]) -> list[Known]:
    """Returns the parameters of groups as they are now."""
    params = [param for group in groups for param in group["params"]]
    return [Known(param, tuple(param.shape), param.dtype) for param in params]


def check_known(known: Sequence[Known], params: Iterable[Tensor], names: Sequence[str]) -> None:
    """Refuses parameters that are not those that the native side was told of."""
    params = list(params)
    if len(params) != len(known):
        raise RuntimeError("parameters joined or left a group; use add_param_group")
    for one, param, name in zip(known, params, names):
        one.check(param, name)
        if param.grad is not None:
            one.check_form(name)


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
