"""The scenarios, and which one a seed runs."""

from __future__ import annotations

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


def draw(seed: int, only: str = "") -> Plan:
    """Return the plan of a seed, of one scenario if that is given."""
    names = [only] if only else list(SCENARIOS)
    return SCENARIOS[names[seed % len(names)]].draw(seed)
