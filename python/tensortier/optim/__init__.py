"""Offloaded Adam and AdamW: real optimizers of torch whose state lives in a store."""

from tensortier.optim.adam import Adam, AdamW
from tensortier.optim.report import StepReport

__all__ = ["Adam", "AdamW", "StepReport"]
