"""The scenarios, and which one a seed runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.arrays import Arrays
from tests.simulation.cached import Cached
from tests.simulation.consolidation import Consolidation
from tests.simulation.creations import Creations, Replacements
from tests.simulation.ingestions import Ingestions
from tests.simulation.plan import Plan
from tests.simulation.resizes import Resizes
from tests.simulation.shards import Shards
from tests.simulation.unconditional import Unconditional
from tests.simulation.world import Scenario

__all__ = ["SCENARIOS", "draw"]

SCENARIOS: dict[str, type[Scenario]] = {
    "arrays": Arrays,
    "shards": Shards,
    "unconditional": Unconditional,
    "cached": Cached,
    "resizes": Resizes,
    "creations": Creations,
    "replacements": Replacements,
    "consolidation": Consolidation,
    "ingestions": Ingestions,
}


def draw(seed: int, only: str = "", kernel: bool | None = None) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: The seed.
        only: A scenario; by default, the seed decides.
        kernel: Whether the compiled kernel is on; by default, the seed decides.
    """
    names = [only] if only else list(SCENARIOS)
    plan = SCENARIOS[names[seed % len(names)]].draw(seed)
    return replace(plan, kernel=Random(f"kernel {seed}").random() < 0.5 if kernel is None else kernel)
