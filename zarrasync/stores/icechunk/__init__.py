"""Repositories of icechunk by URL, and sessions of icechunk, with its package."""

from zarrasync.stores.icechunk.repository import IcechunkStore, open_repository
from zarrasync.stores.icechunk.sessions import session_store

__all__ = ["IcechunkStore", "open_repository", "session_store"]
