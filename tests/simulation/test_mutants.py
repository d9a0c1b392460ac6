"""The simulations find planted bugs; ``make mutants`` shows which seed finds each."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.kernel.test_library import needs_kernel
from tests.simulation.mutants import CASES, MUTANTS, Mutant, find
from tests.support.planting import count_places

pytestmark = pytest.mark.random

QUICK = 300
"""Seeds that run in about ten seconds."""
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")


def marks(mutant: Mutant, kernel: str) -> list[Any]:
    """Return the marks of a test."""
    return [
        *([needs_kernel] if kernel != "off" else []),
        *([needs_compiler] if mutant.module.startswith("_kernel/") else []),
        *([pytest.mark.slow] if mutant.seeds > QUICK else []),
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_place_of_each_bug_is_there(mutant: Mutant):
    assert count_places(mutant.module, mutant.old) == 1


@pytest.mark.parametrize(
    ("mutant", "kernel"),
    [pytest.param(*case, marks=marks(*case), id=f"{case[0].name}, kernel {case[1]}") for case in CASES],
)
def test_each_bug_is_found(mutant: Mutant, kernel: str):
    assert find(mutant, kernel)
