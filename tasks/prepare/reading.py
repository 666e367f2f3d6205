"""Prepared data as training and evaluation read it: sequence by sequence, by number.

    side = PreparedSide(artifact, "train")
    for row in side.sequence(17): row.input_ids, row.trained

Files are mapped into memory where they are first needed; nothing is read ahead and nothing listed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.artifacts import Artifact
from tasks.prepare.plan import PLAN_BATCH, Side
from tasks.prepare.tokenizer import stop_token_ids

__all__ = ["PreparedSide", "Row", "stop_token_ids"]

_MAX_OPEN_SHARDS = 64


@dataclass(frozen=True)
class Row:
    """One row of a sequence, cut to `data.max_length`.

    Attributes:
        input_ids: uint32 of shape (length,).
        trained: bool of shape (length,); which of the tokens are trained.
        source: Number of its file.
        line: Its line in that file, from 1.
        row_hash: 16 bytes that are the same for equal rows.
    """

    input_ids: npt.NDArray[np.uint32]
    trained: npt.NDArray[np.bool_]
    source: int
    line: int
    row_hash: bytes


class PreparedSide:
    """The sequences of one side. Picklable: a copy opens the files anew.

    Args:
        artifact: A prepare artifact.
        side: `train` or `held_out`.
    """

    def __init__(self, artifact: Artifact, side: Side) -> None:
        self._artifact = artifact
        self._side: Side = side
        self._plan = _open(artifact.local(f"plan/{side}.arrow"))
        shards: Any = _open(artifact.local("plan/shards.arrow")).read_all()
        self._names: list[str] = shards["name"].to_pylist()
        self._first_lines: list[int] = shards["first_line"].to_pylist()
        self._max_length: int = artifact.result["max_length"]
        self._open_shards: OrderedDict[int, _Shard] = OrderedDict()
        batches = self._plan.num_record_batches
        last = self._plan.get_batch(batches - 1).num_rows if batches else 0
        self._length = max(0, batches - 1) * PLAN_BATCH + last

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        return (PreparedSide, (self._artifact, self._side))

    def sequence(self, number: int) -> tuple[Row, ...]:
        """The rows of a sequence: one, or with packing all of a bin.

        Args:
            number: From 0 to `len(self) - 1`.

        Raises:
            IndexError: There is no such sequence.
        """
        batch, at = self._locate(number)
        shard_number = batch.column("shard")[at].as_py()
        shard = self._shard(shard_number)
        return tuple(self._row(shard, shard_number, n) for n in batch.column("rows")[at].as_py())

    def num_tokens(self, number: int) -> int:
        """Tokens of a sequence, without reading it.

        Raises:
            IndexError: There is no such sequence.
        """
        batch, at = self._locate(number)
        return batch.column("length")[at].as_py()

    def _locate(self, number: int) -> tuple[Any, int]:
        if not 0 <= number < self._length:
            raise IndexError(f"sequence {number} of {self._length}")
        return self._plan.get_batch(number // PLAN_BATCH), number % PLAN_BATCH

    def _row(self, shard: _Shard, shard_number: int, number: int) -> Row:
        batch, at = shard.locate(number)
        return Row(
            input_ids=_list_item(batch.column("input_ids"), at)[: self._max_length],
            trained=_list_item(batch.column("trained"), at)[: self._max_length],
            source=batch.column("source")[at].as_py(),
            line=batch.column("line")[at].as_py() + self._first_lines[shard_number] - 1,
            row_hash=batch.column("row_hash")[at].as_py(),
        )

    def _shard(self, number: int) -> _Shard:
        """The opened shard; the ones used longest ago are closed."""
        shard = self._open_shards.pop(number, None)
        if shard is None:
            shard = _Shard(self._artifact.local(self._names[number]))
        self._open_shards[number] = shard
        if len(self._open_shards) > _MAX_OPEN_SHARDS:
            self._open_shards.popitem(last=False)
        return shard


class _Shard:
    """A shard's record batches, found by row number."""

    def __init__(self, path: Path) -> None:
        self._file = _open(path)
        batches = [self._file.get_batch(i).num_rows for i in range(self._file.num_record_batches)]
        self._ends = np.cumsum(batches)

    def locate(self, row: int) -> tuple[Any, int]:
        """The batch that holds a row, and the row's place in it."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[number - 1]) if number else 0
        return self._file.get_batch(number), row - first


def _open(path: Path) -> Any:
    return pa.ipc.open_file(pa.memory_map(str(path)))


def _list_item(column: Any, at: int) -> npt.NDArray[Any]:
    """One list of a list column; a view of the mapped file where the type allows."""
    return column[at].values.to_numpy(zero_copy_only=False)
