"""The checker itself: which histories it accepts."""

from __future__ import annotations

from tests.simulation.linearizability import Access, is_linearizable

FOREVER = 1 << 60


def write(start: int, end: int, *, required: bool = True, **cells: int) -> Access:
    return Access(start, end, {"ab".index(name): value for name, value in cells.items()}, True, required)


def read(start: int, end: int, **cells: int) -> Access:
    return Access(start, end, {"ab".index(name): value for name, value in cells.items()}, False)


def holds(*accesses: Access) -> bool:
    return is_linearizable(accesses, (0, 0))


def test_calls_one_after_the_other():
    assert holds(read(0, 1, a=0), write(2, 3, a=1), read(4, 5, a=1, b=0))
    assert not holds(write(2, 3, a=1), read(4, 5, a=0))
    assert not holds(read(0, 1, a=1), write(2, 3, a=1))


def test_concurrent_calls_happen_in_any_order():
    for seen in (0, 1):
        assert holds(write(0, 10, a=1), read(5, 6, a=seen))
    assert holds(write(0, 10, a=1), write(0, 10, a=2), read(11, 12, a=1))
    assert not holds(write(0, 10, a=1), read(2, 3, a=1), read(4, 5, a=0))


def test_a_torn_read_is_noticed():
    assert not holds(write(0, 9, a=1, b=1), read(0, 9, a=1, b=0))


def test_a_lost_update_is_noticed():
    assert not holds(write(0, 9, a=1), write(0, 9, b=1), read(10, 11, a=0, b=1))


def test_a_failed_write_may_have_happened_until_it_ended():
    failed = write(0, 5, required=False, a=1)
    assert holds(failed, read(6, 7, a=0))
    assert holds(failed, read(6, 7, a=1))
    assert not holds(failed, read(6, 7, a=0), read(8, 9, a=1))
    pending = write(0, FOREVER, required=False, a=1)
    assert holds(pending, read(6, 7, a=0), read(8, 9, a=1))
