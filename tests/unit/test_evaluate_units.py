"""Units of evaluation cover each row exactly once, whatever earlier attempts have finished."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.units import Unit, plan_units


def unit(start: int, stop: int, model: str = "base") -> Unit:
    return Unit(model, start, stop)


ranges = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda r: unit(r[0], r[0] + r[1]))


@given(
    num_rows=st.integers(0, 50),
    rows_per_unit=st.integers(1, 60),
    finished=st.lists(ranges, max_size=8),
)
def test_every_row_is_covered_exactly_once(
    num_rows: int, rows_per_unit: int, finished: list[Unit]
) -> None:
    kept, missing = plan_units("base", num_rows, rows_per_unit=rows_per_unit, finished=finished)
    rows = [row for part in (*kept, *missing) for row in range(part.start, part.stop)]
    assert sorted(rows) == list(range(num_rows))
    assert set(kept) <= set(finished)
    assert all(0 < part.stop - part.start <= rows_per_unit for part in missing)
    assert kept == sorted(kept) and missing == sorted(missing)


def test_what_is_finished_is_kept_and_the_gaps_are_cut_anew() -> None:
    kept, missing = plan_units(
        "base", 10, rows_per_unit=2, finished=[unit(3, 6), unit(0, 1), unit(0, 9, "trained")]
    )
    assert kept == [unit(0, 1), unit(3, 6)]
    assert missing == [unit(1, 3), unit(6, 8), unit(8, 10)]


def test_nothing_is_left_when_all_is_finished() -> None:
    assert plan_units("base", 4, rows_per_unit=4, finished=[unit(0, 4)]) == ([unit(0, 4)], [])
