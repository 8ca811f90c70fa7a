"""What the parts of an optimizer know of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from tensortier.optim.params import Known


class Owner(Protocol):
    """The optimizer whose state, or whose gradients, a part looks after."""

    param_groups: list[dict[str, Any]]
    #: The native optimizer, once it is open.
    _native: Any
    #: What the native optimizer knows of each parameter.
    _known: list[Known]
    _closed: bool

    def _params(self) -> Iterator[Tensor]:
        """Returns the parameters of all groups in order."""

    def _name(self, index: int) -> str:
        """Returns the name of a parameter."""

    def _open(self) -> Any:
        """Returns the native optimizer, opened at its first need."""

    def _refuse_closed(self) -> None:
        """Raises a ValueError once the optimizer is closed."""
