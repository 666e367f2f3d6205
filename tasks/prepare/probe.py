"""Whether prepared data would come out the same now: a few of its rows are prepared again.

The artifact's own tokenizer is used: whether these texts get these ids and this mask is what counts
for everything that reads the data, and not whether the tokenizer would be trained alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.artifacts import Artifact
from tasks.prepare.recognise import recognise
from tasks.prepare.shards import ShardRow
from tasks.prepare.splits import Unit
from tasks.prepare.stage import PrepareSpec
from tasks.prepare.tokenizer import load_tokenizer
from tasks.prepare.units import first_rows

_MAX_UNITS = 4
_ROWS_OF_UNIT = 32
_COMPARED = ["row_hash", "source", "line", "held_out", "input_ids", "trained"]


def rows_come_out_the_same(spec: PrepareSpec, artifact: Artifact) -> bool:
    """Compares the first rows of up to four units, spread over the sources, with their shards.

    Args:
        spec: What the artifact was prepared from.
        artifact: The prepare artifact.

    Returns:
        Whether the same rows are there, with the same ids and masks.

    Raises:
        ConfigError: The chat template can't be used any more.
        ResourceError: A source or a shard can't be read.
    """
    tokenizer = load_tokenizer(artifact.local_dir("tokenizer"), spec.data.stop_tokens)
    inputs = recognise(spec.files, spec.data)
    units = inputs.units()
    chosen = np.linspace(0, len(units) - 1, num=min(_MAX_UNITS, len(units)), dtype=int)
    for unit in (units[number] for number in chosen):
        there = _shard_start(artifact, unit)
        if there is None:
            return False
        made = first_rows(unit, inputs.of(unit), tokenizer, inputs.data, count=there.count)
        if [_comparable(row) for row in made] != there.rows:
            return False
    return True


@dataclass(frozen=True)
class _ShardStart:
    """The first rows of a shard, and how many have to be made to compare with them."""

    rows: list[tuple[Any, ...]]
    count: int


def _shard_start(artifact: Artifact, unit: Unit) -> _ShardStart | None:
    """The beginning of a unit's shard; None if the file isn't a shard any more."""
    where = artifact.location.join(artifact.manifest.files[f"shards/{unit.name}.arrow"].path)
    # Opened in place: a remote shard isn't fetched whole.
    with where.open() as stream:
        try:
            reader = pa.ipc.open_file(stream)
            if reader.num_record_batches == 0:
                return _ShardStart([], _ROWS_OF_UNIT)
            batch = reader.get_batch(0).select(_COMPARED).slice(0, _ROWS_OF_UNIT)
        except pa.ArrowInvalid:
            return None
        rows = [tuple(row.values()) for row in batch.to_pylist()]
        # In a shard of one batch, a row too many now would be a difference as well.
        only = reader.num_record_batches == 1
        return _ShardStart(rows, _ROWS_OF_UNIT if only else len(rows))


def _comparable(row: ShardRow) -> tuple[Any, ...]:
    """The values of `_COMPARED`, as Arrow gives them."""
    ids, trained = row.input_ids.tolist(), row.trained.tolist()
    return (row.row_hash, row.source, row.line, row.held_out, ids, trained)
