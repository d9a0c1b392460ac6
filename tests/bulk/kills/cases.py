"""What is killed, when, and in which job: drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["KINDS", "Case", "Kind", "Point", "draw"]

Kind: TypeAlias = Literal["processes", "dask", "tasks"]
After: TypeAlias = Literal["names", "time", "key", "no key"]
KINDS: tuple[Kind, ...] = ("processes", "dask", "tasks")
_VICTIMS: dict[Kind, list[tuple[str, int]]] = {
    "processes": [("main", 4), ("worker", 3), ("workers", 1), ("group", 2)],
    "dask": [("main", 4), ("worker", 3), ("workers", 1), ("group", 1), ("cluster", 1)],
    "tasks": [("main", 3), ("group", 1)],
}
"""The processes to kill, and how often. The group is the main process with its workers."""
_KEYS = ("claim", "task-0", "task-2", "record", "t2m/document", "document")


@dataclass(frozen=True)
class Point:
    """A moment.

    Attributes:
        after: What must have happened: ``"names"``: so many names have appeared in the destination, as a fraction of all;
            ``"time"``: a fraction of the duration of an undisturbed job has passed; ``"key"``: a key exists; ``"no key"``:
            a key existed, and does not any more.
        fraction: The fraction.
        key: The key.
    """

    after: After
    fraction: float = 0.0
    key: str = ""

    def __str__(self) -> str:
        return f"{self.after} {self.key or f'{self.fraction:.2f}'}"


@dataclass(frozen=True)
class Case:
    """One job that is killed once.

    Attributes:
        seed: The seed.
        kind: How the job is divided.
        zarr_format: The format of the dataset.
        append: Whether the dataset exists before, with half of the files.
        shards: Whether chunks lie in shards.
        victim: The processes to kill.
        point: When to kill them.
        choice: Which of several workers is killed, as a fraction.
        spawns: Whether worker processes import everything again, as those of users do. That takes seconds.
    """

    seed: int
    kind: Kind
    zarr_format: int
    append: bool
    shards: bool
    victim: str
    point: Point
    choice: float
    spawns: bool

    @property
    def layout(self) -> tuple[int, bool, bool, bool]:
        """What an undisturbed job depends on."""
        return self.zarr_format, self.append, self.shards, self.spawns

    def __str__(self) -> str:
        what = "append" if self.append else "new"
        return f"{self.kind} {self.seed}: {what}, format {self.zarr_format}, {self.victim} after {self.point}"


def draw(kind: Kind, seed: int) -> Case:
    """Return the case of a seed."""
    choice = random.Random(f"{kind} {seed}")
    zarr_format = choice.choice([2, 3, 3])
    append, shards = choice.random() < 0.5, zarr_format == 3 and choice.random() < 0.3
    names, weights = zip(*_VICTIMS[kind], strict=True)
    (victim,) = choice.choices(names, weights)
    after: After = choice.choice(("names", "names", "time", "key", "no key"))
    if after in ("names", "time"):
        point = Point(after, choice.random())
    else:
        point = Point(after, key=choice.choice(_KEYS if after == "key" else ("record", "task-1")))
    return Case(seed, kind, zarr_format, append, shards, victim, point, choice.random(), choice.random() < 0.1)
