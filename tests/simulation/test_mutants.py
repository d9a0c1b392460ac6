"""The simulations find planted bugs; ``make mutants`` shows which seed finds each."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, SEEDS, Mutant, find
from tests.support.planting import count_places

pytestmark = pytest.mark.random


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_place_of_each_bug_is_there(mutant: Mutant):
    assert count_places(mutant.module, mutant.old) == 1


@pytest.mark.parametrize("mutant", MUTANTS[:2] + MUTANTS[-2:], ids=lambda mutant: mutant.name)
def test_some_bugs_are_found(mutant: Mutant):
    assert find(mutant, 200)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_bug_is_found(mutant: Mutant):
    assert find(mutant, SEEDS)
