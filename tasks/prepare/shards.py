"""The files that a unit writes: its shard of tokens, and the index that the plan is made from.

Both are Arrow IPC files, uncompressed, in record batches of bounded size: a reader maps them into
memory, and neither side ever holds a whole shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASH_BYTES = 16
SHARD = pa.schema(
    [
        ("input_ids", pa.list_(pa.uint32())),
        ("trained", pa.list_(pa.bool_())),
        ("held_out", pa.bool_()),
        ("row_hash", pa.binary(HASH_BYTES)),
        ("length", pa.uint32()),
        ("num_trained", pa.uint32()),
        ("source", pa.uint32()),
        ("line", pa.uint64()),
    ]
)
INDEX = pa.schema(
    [
        ("length", pa.uint32()),
        ("sequence_length", pa.uint32()),
        ("num_trained", pa.uint32()),
        ("held_out", pa.bool_()),
        ("auto_split", pa.bool_()),
        ("row_hash", pa.binary(HASH_BYTES)),
    ]
)
_BATCH_ROWS = 1024
_BATCH_TOKENS = 2**20
_Schema = Any


@dataclass(frozen=True)
class ShardRow:
    """A valid row, tokenised.

    Attributes:
        input_ids: uint32 of shape (length,).
        trained: bool of shape (length,).
        held_out: Its side.
        auto_split: Whether its hash decided the side, and not its source.
        row_hash: 16 bytes.
        source: Number of its file.
        line: Number of its line, counted from the start of the unit's piece of the file.
    """

    input_ids: npt.NDArray[np.uint32]
    trained: npt.NDArray[np.bool_]
    held_out: bool
    auto_split: bool
    row_hash: bytes
    source: int
    line: int


def sequence_length(
    row: ShardRow, *, max_length: int, overlong: Literal["drop", "truncate"]
) -> int:
    """Tokens of a row that the plan uses: 0 if it is dropped for its length."""
    length = len(row.input_ids)
    if length <= max_length:
        return length
    return max_length if overlong == "truncate" else 0


class ArrowWriter:
    """Writes an Arrow IPC file batch by batch.

    Args:
        path: The file.
        schema: Its columns.
    """

    def __init__(self, path: Path, schema: _Schema) -> None:
        self._schema = schema
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)

    def write(self, columns: Sequence[Any]) -> None:
        """Append one record batch: an Arrow array for each column."""
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def __enter__(self) -> ArrowWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
        self._sink.close()


class ShardWriter:
    """Collects rows and writes shard and index in batches that depend on the rows only.

    Args:
        shard: Writer of the shard.
        index: Writer of the index.
    """

    def __init__(self, shard: ArrowWriter, index: ArrowWriter) -> None:
        self._shard, self._index = shard, index
        self._rows: list[tuple[ShardRow, int]] = []
        self._num_tokens = 0

    def add(self, row: ShardRow, sequence_length: int) -> None:
        """Append a row; `sequence_length` tokens of it count in the plan (0: dropped)."""
        self._rows.append((row, sequence_length))
        self._num_tokens += len(row.input_ids)
        if len(self._rows) >= _BATCH_ROWS or self._num_tokens >= _BATCH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._rows:
            return
        rows = [row for row, _ in self._rows]
        used = [length for _, length in self._rows]
        lengths = pa.array([len(row.input_ids) for row in rows], pa.uint32())
        held_out = pa.array([row.held_out for row in rows])
        hashes = pa.array([row.row_hash for row in rows], pa.binary(HASH_BYTES))
        self._shard.write(
            [
                list_array([row.input_ids for row in rows], pa.uint32()),
                list_array([row.trained for row in rows], pa.bool_()),
                held_out,
                hashes,
                lengths,
                pa.array([int(row.trained.sum()) for row in rows], pa.uint32()),
                pa.array([row.source for row in rows], pa.uint32()),
                pa.array([row.line for row in rows], pa.uint64()),
            ]
        )
        trained = [int(row.trained[:length].sum()) for row, length in self._rows]
        self._index.write(
            [
                lengths,
                pa.array(used, pa.uint32()),
                pa.array(trained, pa.uint32()),
                held_out,
                pa.array([row.auto_split for row in rows]),
                hashes,
            ]
        )
        self._rows, self._num_tokens = [], 0


def list_array(parts: Sequence[npt.NDArray[Any]], kind: Any) -> Any:
    """One-dimensional arrays as an Arrow list column."""
    ends = np.cumsum([len(part) for part in parts], dtype=np.int32)
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(parts), kind))
