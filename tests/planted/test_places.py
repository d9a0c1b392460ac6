"""The places of the planted faults exist, so that ``python -m tests.planted find`` can plant them."""

from __future__ import annotations

import pytest

from tests.planted import load
from tests.planted.draw import Fault
from tests.support.planting import count_places


@pytest.mark.parametrize("fault", load(), ids=lambda fault: fault.module)
def test_the_place_of_each_fault_is_there(fault: Fault):
    """``python -m tests.planted draw`` draws the faults again after a change of the code."""
    assert count_places(fault.module, fault.old) == 1
