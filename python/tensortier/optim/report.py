"""What a step did, in numbers of what really moved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepReport:
    """The report of one step. Subgroups are the pieces in which state moves.

    Bytes are those of state; ``paths`` has what each path read and wrote meanwhile, padding included.
    Times are in seconds.
    """

    #: The step, counted from 1; a skipped one does not count, and the next has its number.
    step: int
    #: Whether it was applied, or skipped for gradients that are not finite.
    applied: bool
    #: The first parameter whose gradient is not finite, if that is known.
    non_finite_param: str | None
    #: The norm of all gradients before they were unscaled and clipped, if the step asked for it.
    norm: float | None
    #: Whether all gradients are finite, if the step asked for it.
    finite: bool | None
    #: What the gradients were multiplied with: the clip factor over the loss scale.
    gradient_factor: float
    #: Elements that were updated.
    elements: int
    updated: int
    updated_bytes: int
    reads: int
    reads_bytes: int
    writes: int
    writes_bytes: int
    #: Subgroups that were in memory when their turn came.
    hits: int
    hits_bytes: int
    paths: list[tuple[int, int]]
    seconds: float
    looking: float
    waiting_on_reads: float
    computing: float
    waiting_on_writes: float
