"""Plan and report figures: packing, sides, percentiles, line numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.data import DataConfig
from configs.errors import DataError
from tasks.files import FileEntry
from tasks.prepare import plan
from tasks.prepare.plan import PlannedShard, pack, write_plan
from tasks.prepare.report import Reading, RejectedRow, check_rejected, percentiles, summarise
from tasks.prepare.shards import INDEX
from tasks.prepare.sources import SourceFile
from tasks.prepare.splits import cut_units
from tasks.prepare.units import UnitCounts, UnitResult

LENGTHS = st.lists(st.integers(1, 20), max_size=60)


@given(lengths=LENGTHS)
def test_packing_holds_every_row_once_and_no_bin_is_too_long(lengths: list[int]) -> None:
    rows = np.arange(len(lengths)) * 3
    bins = pack(rows, np.array(lengths, dtype=np.uint32), 20)
    assert sorted(row for b in bins for row in b.tolist()) == rows.tolist()
    assert all(sum(lengths[row // 3] for row in b.tolist()) <= 20 for b in bins)
    assert all(sorted(b.tolist()) == b.tolist() for b in bins)
    assert [int(b[0]) for b in bins] == sorted(int(b[0]) for b in bins)


@given(lengths=LENGTHS)
def test_packing_is_best_fit_decreasing(lengths: list[int]) -> None:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(20 - length)
    bins = pack(np.arange(len(lengths)), np.array(lengths, dtype=np.uint32), 20)
    assert Counter(20 - sum(lengths[row] for row in b.tolist()) for b in bins) == Counter(rooms)


def index(rows: Sequence[tuple[int, bool, bool, bytes]]) -> bytes:
    """An index file of rows (tokens in the plan, held out, side by hash, hash)."""
    lengths = [row[0] for row in rows]
    batch = pa.record_batch(
        [
            pa.array([length or 99 for length in lengths], pa.uint32()),
            pa.array(lengths, pa.uint32()),
            pa.array([length // 2 for length in lengths], pa.uint32()),
            pa.array([row[1] for row in rows]),
            pa.array([row[2] for row in rows]),
            pa.array([row[3] * 16 for row in rows], pa.binary(16)),
        ],
        schema=INDEX,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, INDEX) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def planned(path: Path) -> list[dict[str, Any]]:
    return pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()


def data(**fields: Any) -> DataConfig:
    return DataConfig.model_validate({"sources": [{"path": "x"}], "max_length": 10, **fields})


SHARDS = [
    PlannedShard(
        "shards/00000.arrow",
        index([(4, False, True, b"a"), (0, False, True, b"b"), (6, True, True, b"c")]),
        1,
    ),
    PlannedShard("shards/00001.arrow", index([(5, False, False, b"a"), (4, False, True, b"a")]), 8),
]


def test_plan_divides_rows_and_leaves_out_dropped_ones(tmp_path: Path) -> None:
    totals = write_plan(SHARDS, data(), tmp_path, moved_hash=None)
    assert planned(tmp_path / "train.arrow") == [
        {"shard": 0, "rows": [0], "length": 4},
        {"shard": 1, "rows": [0], "length": 5},
        {"shard": 1, "rows": [1], "length": 4},
    ]
    assert planned(tmp_path / "held_out.arrow") == [{"shard": 0, "rows": [2], "length": 6}]
    assert planned(tmp_path / "shards.arrow") == [
        {"name": "shards/00000.arrow", "first_line": 1},
        {"name": "shards/00001.arrow", "first_line": 8},
    ]
    assert totals.rows == {"train": 3, "held_out": 1}
    assert totals.tokens == {"train": 13, "held_out": 6}
    assert totals.trained == {"train": 6, "held_out": 3}
    assert totals.lengths == {4: 2, 5: 1, 6: 1, 99: 1}


def test_moved_rows_go_with_their_duplicates_but_not_out_of_a_training_source(
    tmp_path: Path,
) -> None:
    write_plan(SHARDS, data(), tmp_path, moved_hash=b"a" * 16)
    held_out = [(row["shard"], row["rows"]) for row in planned(tmp_path / "held_out.arrow")]
    assert held_out == [(0, [0]), (0, [2]), (1, [1])]
    train = [(row["shard"], row["rows"]) for row in planned(tmp_path / "train.arrow")]
    assert train == [(1, [0])]


def test_only_the_training_side_is_packed_within_a_shard(tmp_path: Path) -> None:
    shard = index([(3, False, True, b"a"), (3, True, True, b"b"), (4, False, True, b"c")] * 2)
    totals = write_plan(
        [PlannedShard("shards/00000.arrow", shard, 1)],
        data(packing=True),
        tmp_path,
        moved_hash=None,
    )
    train = planned(tmp_path / "train.arrow")
    assert [(row["rows"], row["length"]) for row in train] == [([0, 3], 6), ([2, 5], 8)]
    assert [row["rows"] for row in planned(tmp_path / "held_out.arrow")] == [[1], [4]]
    assert totals.sequences == {"train": 2, "held_out": 2}


def test_every_record_batch_but_the_last_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PLAN_BATCH", 2)
    write_plan(SHARDS, data(), tmp_path, moved_hash=None)
    file = pa.ipc.open_file((tmp_path / "train.arrow").read_bytes())
    assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [2, 1]


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_percentiles_are_nearest_rank(lengths: list[int]) -> None:
    found = percentiles(Counter(lengths))
    expected = {
        f"p{p}": int(np.percentile(lengths, p, method="inverted_cdf")) for p in (50, 90, 99)
    }
    assert found == {**expected, "max": max(lengths)}


def results(split_bytes: int, lines: list[int], rejected_in: int) -> list[UnitResult]:
    """Units over one large file and two small ones; the last but one has a bad row in line 2."""
    files = [SourceFile("big", 30, 0, {}), SourceFile("s1", 4, 0, {}), SourceFile("s2", 4, 0, {})]
    entry = FileEntry("x", 1, "")
    made: list[UnitResult] = []
    counted = iter(lines)
    for unit in cut_units(files, [True] * 3, split_bytes):
        counts = UnitCounts(lines=[next(counted) for _ in unit.pieces], rows_read=5)
        if unit.number == rejected_in:
            counts.rejected = [(unit.pieces[-1].file, 2, "invalid_json", "bad")]
            counts.num_rejected, counts.dropped = 1, {"invalid_json": 1}
        counts.smallest_auto_hash = f"{9 - unit.number:032x}"
        made.append(UnitResult(unit, entry, entry, counts))
    return made


def test_line_numbers_go_on_across_the_units_of_a_file() -> None:
    files = [SourceFile(name, 1, 0, {}) for name in ("big", "s1", "s2")]
    reading = summarise(results(10, [3, 4, 5, 1, 2], rejected_in=2), files)
    assert reading.first_lines == (1, 4, 8, 1)
    assert [str(row) for row in reading.rejected] == ["big:9: invalid_json: bad"]
    assert reading.rows_read == 20
    assert reading.moved_hash == bytes.fromhex(f"{6:032x}")
    reading = summarise(results(10, [3, 4, 5, 1, 2], rejected_in=3), files)
    assert [row.place for row in reading.rejected] == ["s2:2"]


def test_nothing_is_moved_where_a_row_is_held_out() -> None:
    made = results(10, [3, 4, 5, 1, 2], rejected_in=9)
    made[1].counts.held_out_rows = 1
    assert summarise(made, []).moved_hash is None


def reading(*, rows: int, rejected: int) -> Reading:
    bad = RejectedRow("/d/rows.jsonl", 7, "invalid_json", "Expecting value at column 1")
    return Reading(rows, {}, rejected, {}, (bad,) * min(rejected, 10), None, (1,), {}, None)


def test_too_many_bad_rows_are_named_with_number_limit_and_place() -> None:
    check_rejected(reading(rows=100, rejected=1), 0.01)
    with pytest.raises(DataError) as caught:
        check_rejected(reading(rows=100, rejected=2), 0.01)
    error = caught.value
    assert (error.code, error.exit_code, error.where) == ("too_many_rejected", 3, "/d/rows.jsonl:7")
    assert "2 of 100 rows (2.00%)" in error.rule
    assert "1.00%" in error.rule
    assert "/d/rows.jsonl:7: invalid_json: Expecting value at column 1" in error.hint
    with pytest.raises(DataError) as caught:
        check_rejected(Reading(0, {}, 0, {}, (), None, (), {}, None), 1.0)
    assert caught.value.code == "no_rows"
