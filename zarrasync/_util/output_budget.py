"""Output budgets: limits of the number of bytes that a decoder, a request or an archive may return.

Every decoder receives a budget. It compares the declared size of a value with the budget before it allocates memory. If no
size is declared, it stops as soon as the output exceeds the budget. A damaged or malicious value therefore raises an error
instead of exhausting the memory.
"""

from __future__ import annotations

from typing import Self

_LEAST, _RATIO = 1 << 26, 64
"""Bytes that any value may expand to, and how many times its bytes a larger one may expand to."""


class BudgetExceeded(ValueError):
    """The output exceeds the budget."""


class OutputBudget(int):
    """The maximum number of output bytes: an integer with a description of its origin.

    Args:
        nbytes: The number of bytes.
        origin: The origin of the limit, for messages: ``"config.max_chunk_bytes is 1,000"``.
    """

    origin: str

    def __new__(cls, nbytes: int, origin: str) -> Self:
        budget = super().__new__(cls, nbytes)
        budget.origin = origin
        return budget

    def __reduce__(self) -> tuple[type[Self], tuple[int, str]]:
        return type(self), (int(self), self.origin)


def expansion_budget(nbytes: int) -> OutputBudget:
    """Return the most bytes that so many encoded ones may expand to, if nothing else limits them.

    Compressors shrink text and binary data by a factor of 3 to 20. What shrinks further is mostly empty, so it is small.
    """
    limit = max(_LEAST, _RATIO * nbytes)
    return OutputBudget(limit, f"the limit is {limit:,}, which is {_RATIO} times its stored size or {_LEAST >> 20} MiB")


def check_budget(limit: int, nbytes: int, *, at_least: bool = False, what: str = "result") -> None:
    """Check that an output size is within a budget.

    Args:
        limit: The budget.
        nbytes: The size of the output in bytes.
        at_least: Whether the output may be larger than ``nbytes``.
        what: A name of the output, for messages.

    Raises:
        BudgetExceeded: If the size exceeds the budget.
    """
    if nbytes > limit:
        size = f"more than {int(limit):,}" if at_least else f"{nbytes:,}"
        reason = limit.origin if isinstance(limit, OutputBudget) else f"the limit is {limit:,}"
        raise BudgetExceeded(f"the {what} has {size} bytes; {reason}")


def reason_of(error: Exception, *, with_kind: bool = True) -> str:
    """Return the reason in an error of a library, for messages.

    Libraries raise ``MemoryError`` for values that are not damaged, and often without a message.

    Args:
        error: The error.
        with_kind: Whether to begin with the class of the error.
    """
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    if isinstance(error, BudgetExceeded) or not with_kind:
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"
