"""Units of evaluation: one model on a range of rows. Finished ones are never done again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Unit:
    """One model on the rows `start` to `stop` (exclusive) of the held-out plan."""

    model: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Name of the unit's record."""
        return f"{self.model}-{self.start:09d}-{self.stop:09d}"

    @property
    def file(self) -> str:
        """Logical name of its predictions."""
        return f"predictions/{self.model}/{self.start:09d}-{self.stop:09d}.jsonl"


def plan_units(
    model: str, num_rows: int, *, rows_per_unit: int, finished: Iterable[Unit]
) -> tuple[list[Unit], list[Unit]]:
    """Which units cover a model's rows: those finished that are of use, and those left to do.

    The size of a unit may have changed since an earlier attempt, so what is finished is taken by
    its rows: none is covered twice, and what is left is cut by the size of now.

    Args:
        model: The model; units of others are ignored.
        num_rows: Rows to cover.
        rows_per_unit: Most rows of a new unit.
        finished: Units that earlier attempts recorded.

    Returns:
        Units to reuse and units to do, each in the order of their rows; together they cover each
        row exactly once.
    """
    kept: list[Unit] = []
    missing: list[Unit] = []
    covered = 0
    ours = [unit for unit in finished if unit.model == model and unit.stop <= num_rows]
    for unit in [*sorted(ours), Unit(model, num_rows, num_rows)]:
        if unit.start < covered:
            continue
        for start in range(covered, unit.start, rows_per_unit):
            missing.append(Unit(model, start, min(start + rows_per_unit, unit.start)))
        if unit.start < unit.stop:
            kept.append(unit)
        covered = unit.stop
    return kept, missing
