"""Tests of the protocol run with the server on aiohttp, and on Starlette in uvicorn."""

from __future__ import annotations

import pytest

_ON_BOTH = {"test_access", "test_api", "test_caching", "test_edr", "test_limits", "test_served_stores"}


_CONNECTIONS = {"test_malformed_requests", "test_changed_requests"}
"""Tests of the parser and the time limits of connections, which are those of the ASGI server."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_protocol = metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH
    if (
        is_protocol
        and metafunc.definition.get_closest_marker("servers")
        and metafunc.definition.name not in _CONNECTIONS
    ):
        metafunc.parametrize("framework", ["aiohttp", "asgi"], indirect=True)


@pytest.fixture(autouse=True)
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The framework that ``serving`` uses."""
    name = getattr(request, "param", "aiohttp")
    monkeypatch.setenv("FRAMEWORK", name)
    return name
