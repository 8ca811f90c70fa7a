"""Two models with equal weights, one trained by torch and one by tensortier, step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its optimizer is not tested")

import tensortier  # noqa: E402

#: What a store of a small test has.
HOST_MEMORY = 8 << 20


def network() -> Any:
    """Returns a network all of whose tensors have a multiple of 64 elements."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)
    )


def batches(count: int) -> Iterable[Any]:
    """Returns inputs, the same ones each time."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(16, 64, generator=generator) for _ in range(count)]


def loss_of(model: Any, batch: Any) -> Any:
    """Returns a loss that depends on the model alone."""
    return (model(batch) - batch.roll(1, 1)).pow(2).mean()


class Twins:
    """A model of ours and one of torch's, whose every bit has to be the same."""

    def __init__(
        self,
        path: Any,
        algorithm: str = "AdamW",
        groups: Callable[[Any], Any] = lambda model: model.parameters(),
        ours: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        self.ours, self.theirs = network(), network()
        own = {"host_memory": HOST_MEMORY, "paths": [path], **(ours or {})}
        make = getattr(tensortier, algorithm)
        self.opt = make(groups(self.ours), **copy.deepcopy(arguments), **own)
        reference = getattr(torch.optim, algorithm)
        self.ref = reference(groups(self.theirs), **copy.deepcopy(arguments), fused=True)

    def both(self) -> list[tuple[Any, Any]]:
        return [(self.ours, self.opt), (self.theirs, self.ref)]

    def backward(self, batch: Any) -> None:
        for model, opt in self.both():
            opt.zero_grad()
            loss_of(model, batch).backward()

    def step(self, batch: Any) -> None:
        self.backward(batch)
        self.opt.step()
        self.ref.step()

    def compare(self) -> None:
        """Compares every bit of weights and state."""
        for ours, theirs in zip(self.ours.parameters(), self.theirs.parameters()):
            assert torch.equal(ours, theirs)
        same_state(self.opt.state_dict(), self.ref.state_dict())


def same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares every bit of two states, and their groups but for what is torch's own affair."""
    assert list(ours["state"]) == list(theirs["state"])
    for key, state in theirs["state"].items():
        assert list(ours["state"][key]) == list(state)
        for name, value in state.items():
            assert ours["state"][key][name].dtype == value.dtype
            assert torch.equal(ours["state"][key][name], value), (key, name)
    assert len(ours["param_groups"]) == len(theirs["param_groups"])
    for one, other in zip(ours["param_groups"], theirs["param_groups"]):
        assert set(one) == set(other)
        for name in set(one) - {"fused"}:
            assert one[name] == other[name], name
