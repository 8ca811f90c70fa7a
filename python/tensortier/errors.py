"""Exceptions of the package, beside those that Python has already."""

from __future__ import annotations

from typing import Any

from tensortier._tensortier import ClosedError, CorruptError

__all__ = ["BatchError", "ClosedError", "CorruptError"]


class BatchError(Exception):
    """Some items of a batch failed; all others were done.

    Attributes:
        errors: The exception of each item that failed, by key.
        results: What the others returned, by key.
    """

    def __init__(self, verb: str, errors: dict[str, Exception], results: dict[str, Any]) -> None:
        first = next(iter(errors.values()))
        super().__init__(f"{verb}: {len(errors)} of {len(errors) + len(results)} failed: {first}")
        self.errors = errors
        self.results = results


def settle(
    verb: str, keys: list[str], outcomes: list[Exception | None], values: list[Any]
) -> dict[str, Any]:
    """Returns the values of a batch by key.

    Raises:
        BatchError: Some of it failed; its cause is the first of those errors.
    """
    results, errors = {}, {}
    for key, outcome, value in zip(keys, outcomes, values):
        if outcome is None:
            results[key] = value
        else:
            errors[key] = outcome
    if errors:
        raise BatchError(verb, errors, results) from next(iter(errors.values()))
    return results
