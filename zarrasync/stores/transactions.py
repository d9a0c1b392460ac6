"""Transactions: stores in which all changes become visible together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zarrasync.stores.base import Store

__all__ = ["Transaction"]


class Transaction(ABC):
    """Changes that become visible when they are committed. Without that, they have no effect.

    Attributes:
        store: The store for the changes. Only the process that began the transaction can use it.
    """

    store: Store

    @abstractmethod
    def commit(self, message: str) -> None:
        """Make the changes visible.

        Args:
            message: A description for the history.

        Raises:
            WriteConflictError: If others have committed changes meanwhile. Nothing has become visible then.
            StoreError: If the store failed.
        """
