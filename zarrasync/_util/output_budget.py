"""Output budgets: how many bytes may come out of a decoder, a request, or an archive.

Every decoder receives one. It compares a declared size with it before it allocates memory, and stops right after it if
no size is declared. A damaged or hostile value therefore raises an error instead of exhausting the memory.
"""

from __future__ import annotations

from typing import Self

__all__ = ["BudgetExceeded", "OutputBudget", "check_budget"]


class BudgetExceeded(ValueError):
    """More bytes would come out than the budget allows."""


class OutputBudget(int):
    """The most bytes that may come out: an integer that knows what sets the limit.

    Args:
        nbytes: The number of bytes.
        origin: What sets the limit, for messages: ``"config.max_chunk_bytes is 1,000"``.
    """

    origin: str

    def __new__(cls, nbytes: int, origin: str) -> Self:
        budget = super().__new__(cls, nbytes)
        budget.origin = origin
        return budget

    def __reduce__(self) -> tuple[type[Self], tuple[int, str]]:
        return type(self), (int(self), self.origin)


def check_budget(limit: int, nbytes: int, *, at_least: bool = False, what: str = "result") -> None:
    """Check that bytes fit into a budget.

    Args:
        limit: The budget.
        nbytes: The number of bytes that came out or would come out.
        at_least: Whether more may follow.
        what: What has so many bytes, for messages.

    Raises:
        BudgetExceeded: If they do not.
    """
    if nbytes > limit:
        size = f"more than {int(limit):,}" if at_least else f"{nbytes:,}"
        reason = limit.origin if isinstance(limit, OutputBudget) else f"the limit is {limit:,}"
        raise BudgetExceeded(f"the {what} has {size} bytes; {reason}")
