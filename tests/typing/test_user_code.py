"""The program whose types ``make type`` checks runs."""

from __future__ import annotations

from tests.typing import user_code


def test_the_synchronous_program_runs():
    user_code.blocking()


async def test_the_asynchronous_program_runs():
    await user_code.asynchronous()
