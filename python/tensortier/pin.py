"""Chunks that are kept in a store's memory as long as somebody looks at them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tensortier import _frameworks
from tensortier.view import View


class Pin:
    """A chunk that is kept in memory, and the view of it: `with store.pin(key) as view`.

    The end of the `with` block gives up the pin's own hold. The chunk stays as long as anybody
    still holds the view or something made from it.
    """

    def __init__(self, view: View, framework: str) -> None:
        self._view: Any = _frameworks.viewed(framework, view)

    @property
    def view(self) -> Any:
        """The view: a torch tensor, a numpy array, or a `View`.

        Raises:
            ValueError: The pin was released.
        """
        if self._view is None:
            raise ValueError("the pin was released; pin the object again")
        return self._view

    def release(self) -> None:
        """Gives up the pin's hold; a second call does nothing."""
        self._view = None

    def __enter__(self) -> Any:
        return self.view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
