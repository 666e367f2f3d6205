"""The plan: which rows of which shard make a sequence, on which side.

Everything that needs to see more than one unit is decided here, from the units' indexes, shard by
shard, so that memory is bounded by one index. Packing puts the rows of one shard into bins of at
most `data.max_length` tokens; the held-out side is never packed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from configs.data import DataConfig
from tasks.prepare.shards import ArrowWriter, list_array

PLAN = pa.schema([("shard", pa.uint32()), ("rows", pa.list_(pa.uint32())), ("length", pa.uint32())])
SHARDS = pa.schema([("name", pa.string()), ("first_line", pa.uint64())])
PLAN_BATCH = 65_536
"""Sequences of every record batch of a plan but its last: sequence i is found without a search."""

Side = Literal["train", "held_out"]


@dataclass
class PlanTotals:
    """What the plan holds.

    Attributes:
        rows: Rows of each side.
        sequences: Sequences of each side.
        tokens: Tokens of each side.
        trained: Trained tokens of each side.
        lengths: How many rows have which length (tokens), before any limit.
    """

    rows: Counter[Side] = field(default_factory=Counter[Side])
    sequences: Counter[Side] = field(default_factory=Counter[Side])
    tokens: Counter[Side] = field(default_factory=Counter[Side])
    trained: Counter[Side] = field(default_factory=Counter[Side])
    lengths: Counter[int] = field(default_factory=Counter[int])


@dataclass(frozen=True)
class PlannedShard:
    """A shard as the plan sees it.

    Attributes:
        name: Logical name of the shard's file.
        index: Content of its index file.
        first_line: Number of the line in the file at which the unit's first piece begins.
    """

    name: str
    index: bytes
    first_line: int


def write_plan(
    shards: Iterable[PlannedShard], data: DataConfig, folder: Path, *, moved_hash: bytes | None
) -> PlanTotals:
    """Writes train.arrow, held_out.arrow and shards.arrow.

    Args:
        shards: All shards, in order; one at a time is looked at.
        data: The `data` section.
        folder: Where to write.
        moved_hash: Hash of the rows that go to the held-out side because it would be empty.
    """
    totals = PlanTotals()
    with (
        ArrowWriter(folder / "train.arrow", PLAN) as train,
        ArrowWriter(folder / "held_out.arrow", PLAN) as held_out,
        ArrowWriter(folder / "shards.arrow", SHARDS) as names,
    ):
        sides: dict[Side, _SideWriter] = {
            "train": _SideWriter(train),
            "held_out": _SideWriter(held_out),
        }
        seen: list[tuple[str, int]] = []
        for number, shard in enumerate(shards):
            seen.append((shard.name, shard.first_line))
            index: Any = pa.ipc.open_file(shard.index).read_all()
            _plan_shard(number, index, data, sides, totals, moved_hash)
        for writer in sides.values():
            writer.finish()
        names.write(
            [
                pa.array([name for name, _ in seen], pa.string()),
                pa.array([line for _, line in seen], pa.uint64()),
            ]
        )
    return totals


def _plan_shard(
    number: int,
    index: Any,
    data: DataConfig,
    sides: dict[Side, _SideWriter],
    totals: PlanTotals,
    moved_hash: bytes | None,
) -> None:
    lengths = index["sequence_length"].to_numpy()
    trained = index["num_trained"].to_numpy()
    held_out = index["held_out"].to_numpy()
    if moved_hash is not None:
        same = np.array(index["row_hash"].to_pylist(), dtype=object) == moved_hash
        held_out = held_out | (same & index["auto_split"].to_numpy())
    for length, count in zip(
        *np.unique(index["length"].to_numpy(), return_counts=True), strict=True
    ):
        totals.lengths[int(length)] += int(count)
    chosen: dict[Side, npt.NDArray[np.bool_]] = {"train": ~held_out, "held_out": held_out}
    for side in chosen:
        rows = np.flatnonzero(chosen[side] & (lengths > 0))
        if side == "train" and data.packing:
            sequences = pack(rows, lengths[rows], data.max_length)
        else:
            sequences = [rows[i : i + 1] for i in range(len(rows))]
        sides[side].add(number, sequences, lengths)
        totals.rows[side] += len(rows)
        totals.sequences[side] += len(sequences)
        totals.tokens[side] += int(lengths[rows].sum())
        totals.trained[side] += int(trained[rows].sum())


def pack(
    rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.uint32], capacity: int
) -> list[npt.NDArray[np.int64]]:
    """Best-fit-decreasing bins: the longest row first, each into the fullest bin with room for it.

    Args:
        rows: Row numbers, shape (num_rows,), ascending.
        lengths: Their tokens, shape (num_rows,), each at most `capacity`.
        capacity: Tokens that a bin holds.

    Returns:
        The rows of each bin, ascending; the bins in the order of their first rows.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    # Bit r is set where a bin has room for r more tokens: the best fit is the lowest bit from the
    # row's length on.
    rooms = 0
    for position in np.lexsort((rows, -lengths.astype(np.int64))):
        length = int(lengths[position])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            chosen = heapq.heappop(by_room[room])
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(int(rows[position]))
        room -= length
        heapq.heappush(by_room.setdefault(room, []), chosen)
        rooms |= 1 << room
    return sorted((np.sort(np.array(b)) for b in bins), key=lambda b: int(b[0]))


class _SideWriter:
    """Writes one side's sequences in record batches of exactly `PLAN_BATCH`."""

    def __init__(self, writer: ArrowWriter) -> None:
        self._writer = writer
        self._shards: list[int] = []
        self._rows: list[npt.NDArray[np.int64]] = []
        self._lengths: list[int] = []

    def add(
        self,
        shard: int,
        sequences: Sequence[npt.NDArray[np.int64]],
        lengths: npt.NDArray[np.uint32],
    ) -> None:
        """Append sequences; `lengths` are those of all rows of the shard."""
        for rows in sequences:
            self._shards.append(shard)
            self._rows.append(rows)
            self._lengths.append(int(lengths[rows].sum()))
            if len(self._rows) == PLAN_BATCH:
                self.finish()

    def finish(self) -> None:
        """Write what was collected."""
        if self._rows:
            self._writer.write(
                [
                    pa.array(self._shards, pa.uint32()),
                    list_array(self._rows, pa.uint32()),
                    pa.array(self._lengths, pa.uint32()),
                ]
            )
        self._shards, self._rows, self._lengths = [], [], []
