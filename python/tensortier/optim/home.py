"""Where the state of an optimizer lives: in a store that others use too, or in one of its own."""

from __future__ import annotations

from typing import Any

from tensortier import _settings
from tensortier.store import Store


class Home:
    """A store, opened at its first need if it is the optimizer's own.

    Args:
        store: A store that is there already.
        host_memory: Which part of its memory is planned with, by default all; or the memory of a store
            of one's own.
        paths: The directories of a store of one's own.

    Raises:
        TypeError: It is neither the one nor the other.
        ValueError: The store has less memory than that.
    """

    def __init__(self, store: Any, host_memory: int | str | None, paths: Any) -> None:
        if (store is None) == (paths is None) or (store is None and host_memory is None):
            raise TypeError(
                "give either store=, and host_memory= with it if this optimizer is to plan with only a "
                "part of the store's memory, or both host_memory= and paths="
            )
        if store is not None and not isinstance(store, Store):
            raise TypeError(f"store is {store!r}; give a tensortier.Store, or host_memory= and paths=")
        self._store: Store | None = store
        self._paths = None if paths is None else _settings.paths(paths)
        #: The bytes of memory that the optimizer plans with; nothing is all that the store has.
        self.host_memory: int | None = None
        if host_memory is not None:
            self.host_memory = _settings.size(host_memory, "host_memory")
        if store is not None and self.host_memory is not None:
            budget = store.stats()["host"]["budget"]
            if self.host_memory > budget:
                raise ValueError(
                    f"host_memory is {self.host_memory} bytes, and the store has {budget}; plan with "
                    "a part of them, or open the store with more"
                )

    def open(self) -> Store:
        """Returns the store."""
        if self._store is None:
            self._store = Store(host_memory=self.host_memory, paths=self._paths)
        return self._store

    def close(self) -> None:
        """Closes the store if it is the optimizer's own."""
        if self._paths is not None and self._store is not None:
            self._store.close()
            self._store = None
