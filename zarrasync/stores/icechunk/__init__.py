"""Repositories of icechunk by URL, and sessions of icechunk, with its package."""

from zarrasync.stores.icechunk.sessions import session_store
from zarrasync.stores.icechunk.store import IcechunkStore, open_repository

__all__ = ["IcechunkStore", "open_repository", "session_store"]
