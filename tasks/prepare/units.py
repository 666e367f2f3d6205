"""A unit of work: the lines of its pieces become one shard, and what was seen is counted.

Units are the rows of a Ray Data pipeline. Each is finished once a record of it is written, and is
never made again; which worker makes it, and when, changes no byte.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from configs.data import DataConfig
from tasks.artifacts import OpenArtifact
from tasks.errors import storage_errors
from tasks.files import FileEntry
from tasks.prepare.formats import parse_row
from tasks.prepare.recognise import Input, records_of
from tasks.prepare.records import Record, Rejected
from tasks.prepare.shards import (
    INDEX,
    SHARD,
    ArrowWriter,
    ShardRow,
    ShardWriter,
    sequence_length,
)
from tasks.prepare.sources import check_unchanged
from tasks.prepare.splits import Piece, Unit
from tasks.prepare.stage import PrepareStage
from tasks.prepare.tokenizer import TokenizerFolder
from tasks.prepare.tokens import RenderedRow, RowEncoder

MAX_EXAMPLES = 10
_BATCH_ROWS = 512
_BATCH_CHARS = 2**20
_MAX_DETAIL = 200


@dataclass
class UnitCounts:
    """What a unit read and made; small JSON, whatever the number of rows.

    Attributes:
        lines: Records of each piece, blank lines included.
        rows_read: Records that aren't blank.
        dropped: Rows that aren't in the plan, by reason.
        num_rejected: Those of them that are bad rows.
        notes: What happened without spoiling a row, by code.
        rejected: File number, line within the piece, reason and detail of the first bad rows.
        fatal: The first row that the config doesn't tolerate, likewise; empty if there is none.
        shard_rows: Rows in the shard.
        held_out_rows: Rows of the plan on the held-out side.
        sources: For each source `read`, `rejected`, `rows` in the plan and their `tokens`.
        smallest_auto_hash: Of the plan's rows whose side the hash decides, as hex; empty: none.
    """

    lines: list[int] = field(default_factory=list[int])
    rows_read: int = 0
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    num_rejected: int = 0
    notes: dict[str, int] = field(default_factory=dict[str, int])
    rejected: list[tuple[int, int, str, str]] = field(
        default_factory=list[tuple[int, int, str, str]]
    )
    fatal: list[tuple[int, int, str, str]] = field(default_factory=list[tuple[int, int, str, str]])
    shard_rows: int = 0
    held_out_rows: int = 0
    sources: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    smallest_auto_hash: str = ""


@dataclass(frozen=True)
class UnitResult:
    """A finished unit: its two files and its counts."""

    unit: Unit
    shard: FileEntry
    index: FileEntry
    counts: UnitCounts

    @property
    def files(self) -> dict[str, FileEntry]:
        """Both files by logical name."""
        return {
            f"shards/{self.unit.name}.arrow": self.shard,
            f"index/{self.unit.name}.arrow": self.index,
        }

    @property
    def meta(self) -> dict[str, Any]:
        """What its record tells besides: the counts, and the versions it is made under."""
        return {"counts": asdict(self.counts), "versions": PrepareStage().versions()}

    def record(self, output: OpenArtifact) -> None:
        """Marks the unit as finished."""
        output.record_unit(self.unit.name, self.files, self.meta)

    @classmethod
    def from_record(
        cls, unit: Unit, files: dict[str, FileEntry], meta: dict[str, Any]
    ) -> UnitResult:
        """The finished unit that a record tells of."""
        counts = UnitCounts(**meta["counts"])
        return cls(
            unit,
            files[f"shards/{unit.name}.arrow"],
            files[f"index/{unit.name}.arrow"],
            counts,
        )


@dataclass(frozen=True)
class _Found:
    """A rendered row on its way to the tokenizer."""

    row: RenderedRow
    row_hash: bytes
    split: Literal["auto", "train", "held_out"]
    file: int
    line: int


class UnitMaker:
    """Makes units: reads, renders, tokenises, writes.

    Args:
        folder: The tokenizer.
        data: The `data` section.
        output: Where shards go.
    """

    def __init__(self, folder: TokenizerFolder, data: DataConfig, output: OpenArtifact) -> None:
        self._folder, self._data, self._output = folder, data, output

    def make(self, unit: Unit, inputs: Sequence[Input]) -> UnitResult:
        """Makes a unit and records it as finished.

        Args:
            unit: What to read.
            inputs: The files of its pieces, in their order.

        Raises:
            ModelmillError: A file was changed meanwhile, a file or the workspace fails, or the
                chat template needs what the config doesn't give.
        """
        with tempfile.TemporaryDirectory(prefix="modelmill-") as scratch:
            shard, index = Path(scratch, "shard.arrow"), Path(scratch, "index.arrow")
            with (
                storage_errors(scratch),
                ArrowWriter(shard, SHARD) as shard_writer,
                ArrowWriter(index, INDEX) as index_writer,
            ):
                unit_run = _UnitRun(self._folder, self._data)
                counts = unit_run.write(unit, inputs, ShardWriter(shard_writer, index_writer))
            for one in inputs:
                check_unchanged(one.file)
            result = UnitResult(
                unit,
                self._output.upload(f"shards/{unit.name}.arrow", shard, unit=True),
                self._output.upload(f"index/{unit.name}.arrow", index, unit=True),
                counts,
            )
        result.record(self._output)
        return result


def first_rows(
    unit: Unit,
    inputs: Sequence[Input],
    folder: TokenizerFolder,
    data: DataConfig,
    *,
    count: int,
) -> list[ShardRow]:
    """The first rows of a unit's shard, made without writing anything."""
    return list(islice(_UnitRun(folder, data, batch_rows=count).rows(unit, inputs), count))


class _UnitRun:
    """One pass over a unit's lines."""

    def __init__(
        self, folder: TokenizerFolder, data: DataConfig, *, batch_rows: int = _BATCH_ROWS
    ) -> None:
        self._data = data
        self._batch_rows = batch_rows
        self._encoder = RowEncoder(folder, data)
        self._counts = UnitCounts()
        self._dropped: Counter[str] = Counter()
        self._by_source: dict[int, Counter[str]] = {}
        self._source_of: dict[int, int] = {}

    def write(self, unit: Unit, inputs: Sequence[Input], writer: ShardWriter) -> UnitCounts:
        """Writes all rows and counts what was seen."""
        for row in self.rows(unit, inputs):
            writer.add(row, self._count(row))
        writer.flush()
        self._counts.dropped = dict(sorted(self._dropped.items()))
        self._counts.notes = dict(sorted(self._encoder.notes.items()))
        self._counts.sources = {str(n): dict(c) for n, c in sorted(self._by_source.items())}
        return self._counts

    def rows(self, unit: Unit, inputs: Sequence[Input]) -> Iterator[ShardRow]:
        """The rows of the shard, tokenised in batches."""
        waiting: list[_Found] = []
        num_chars = 0
        for piece, one in zip(unit.pieces, inputs, strict=True):
            for found in self._piece(piece, one):
                waiting.append(found)
                num_chars += found.row.num_chars
                if len(waiting) >= self._batch_rows or num_chars >= _BATCH_CHARS:
                    yield from self._encode(waiting)
                    waiting, num_chars = [], 0
        yield from self._encode(waiting)

    def _piece(self, piece: Piece, one: Input) -> Iterator[_Found]:
        """The rows of a piece that can be tokenised; its records are counted on the way."""
        source = self._data.sources[one.file.source]
        self._source_of[piece.file] = one.file.source
        counted = self._by_source.setdefault(one.file.source, Counter(read=0))
        number = 0
        for record in records_of(one, source, piece):
            number = record.number
            if record.is_blank:
                continue
            self._counts.rows_read += 1
            counted["read"] += 1
            try:
                parsed = parse_row(record.values(), source)
                rendered = self._encoder.render(parsed.content)
            except Rejected as error:
                counted["rejected"] += error.kind != "unwanted"
                self._reject(piece, record, error)
                continue
            yield _Found(rendered, parsed.row_hash, source.split, piece.file, number)
        self._counts.lines.append(number)

    def _reject(self, piece: Piece, record: Record, error: Rejected) -> None:
        self._dropped[error.reason] += 1
        if error.kind == "unwanted":
            return
        self._counts.num_rejected += 1
        example = (piece.file, record.number, error.reason, error.detail[:_MAX_DETAIL])
        if error.kind == "fatal" and not self._counts.fatal:
            self._counts.fatal.append(example)
        if len(self._counts.rejected) < MAX_EXAMPLES:
            self._counts.rejected.append(example)

    def _encode(self, waiting: Sequence[_Found]) -> Iterator[ShardRow]:
        encoded = self._encoder.encode([found.row for found in waiting])
        for found, tokens in zip(waiting, encoded, strict=True):
            if not tokens.trained.any():
                self._dropped["no_trained_token"] += 1
                continue
            auto = found.split == "auto"
            by_hash = auto and self._is_held_out(found.row_hash)
            yield ShardRow(
                input_ids=tokens.input_ids,
                trained=tokens.trained,
                held_out=by_hash or found.split == "held_out",
                auto_split=auto,
                row_hash=found.row_hash,
                source=found.file,
                line=found.line,
            )

    def _count(self, row: ShardRow) -> int:
        """Counts a row of the shard; how many of its tokens the plan uses."""
        counts = self._counts
        length = sequence_length(
            row, max_length=self._data.max_length, overlong=self._data.overlong
        )
        if length == 0:
            self._dropped["overlong"] += 1
        elif not row.trained[:length].any():
            self._dropped["no_trained_token"] += 1
            length = 0
        if length > 0:
            counted = self._by_source[self._source_of[row.source]]
            counted["rows"] += 1
            counted["tokens"] += length
            counts.held_out_rows += row.held_out
            if row.auto_split:
                smallest = counts.smallest_auto_hash or row.row_hash.hex()
                counts.smallest_auto_hash = min(smallest, row.row_hash.hex())
        counts.shard_rows += 1
        return length

    def _is_held_out(self, row_hash: bytes) -> bool:
        return int.from_bytes(row_hash[:8]) < self._data.held_out_fraction * 2**64
