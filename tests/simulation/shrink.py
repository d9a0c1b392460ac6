"""Making a failing plan smaller, so that people can follow its history."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.world import Outcome, Scenario, run

__all__ = ["shrink"]

_OTHER_ORDERS = 10
"""Seeds to try for each smaller plan: a step less changes the order of all others."""


def shrink(failure: Outcome, kind: type[Scenario]) -> Outcome:
    """Return a failure of the same sort of a plan from which nothing can be left out."""
    while True:
        smaller = _smaller(failure, kind)
        if smaller is None:
            return failure
        failure = smaller


def _smaller(failure: Outcome, kind: type[Scenario]) -> Outcome | None:
    for plan in failure.plan.smaller():
        for seed in (plan.seed, *range(_OTHER_ORDERS)):
            found = run(replace(plan, seed=seed), kind, detailed=True)
            if found.error is not None and type(found.error) is type(failure.error):
                return found
    return None
