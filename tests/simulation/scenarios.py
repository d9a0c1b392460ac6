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

__all__ = ["KERNEL", "SCENARIOS", "draw"]

KERNEL = ("on", "off", "mixed")
"""In which clients the compiled kernel is on; see ``Plan``."""

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


def draw(seed: int, only: str = "", kernel: str = "") -> Plan:
    """Return the plan of a seed.

    Args:
        seed: The seed.
        only: A scenario; by default, the seed decides.
        kernel: One of ``KERNEL``; by default, the seed decides.
    """
    names = [only] if only else list(SCENARIOS)
    plan = SCENARIOS[names[seed % len(names)]].draw(seed)
    random = Random(f"settings {seed}")
    drawn, fsync = random.choice(KERNEL), plan.store == "files" and random.random() < 0.15
    return replace(plan, kernel=kernel or drawn, fsync=fsync)
