"""What rows become, shown without preparing them: no Ray, no artifact, no `transformers`.

The tokenizer's own files and the sandboxed chat template are all that is needed. Where a tokenizer
has no tokenizer.json of its own (a GGUF file), `transformers` makes one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tasks.artifacts import Artifact
from tasks.base_tokenizer import local_tokenizer
from tasks.prepare.formats import parse_row
from tasks.prepare.make_tokenizer import make_tokenizer
from tasks.prepare.plan import Side
from tasks.prepare.reading import PreparedSide
from tasks.prepare.recognise import Input, Inputs, recognise, records_of
from tasks.prepare.records import Record, Rejected
from tasks.prepare.report import file_at
from tasks.prepare.stage import PrepareSpec
from tasks.prepare.tokenizer import Part, TokenizerFolder, decoded, load_tokenizer
from tasks.prepare.tokens import RowEncoder, TokenRow

_MAX_TOKENS = 4000
_COLUMN_ROWS = 100
_MAX_EXAMPLE = 60


@dataclass(frozen=True)
class PreviewRow:
    """A row as it would be prepared, or the reason why not.

    Attributes:
        place: `file:line`.
        parts: Its text in order; empty if it isn't used.
        num_tokens: Its tokens.
        num_trained: Those that are trained.
        reason: Why it isn't used; empty if it is.
    """

    place: str
    parts: tuple[Part, ...] = ()
    num_tokens: int = 0
    num_trained: int = 0
    reason: str = ""


@dataclass(frozen=True)
class SourceColumns:
    """A source's first rows: what they are taken for, and their columns with an example each."""

    number: int
    file_types: tuple[str, ...]
    format: str
    columns: dict[str, str]


def preview_rows(spec: PrepareSpec, count: int) -> Iterator[PreviewRow]:
    """The first rows of each source.

    Args:
        spec: What would be prepared.
        count: Rows of each source.

    Raises:
        DataError: A file can't be read.
        ConfigError: The tokenizer isn't one, or conversations have no chat template.
    """
    inputs = recognise(spec.files, spec.data)
    with tempfile.TemporaryDirectory(prefix="modelmill-") as scratch:
        tokenizer = _tokenizer(spec, inputs, Path(scratch, "tokenizer"))
        encoder = RowEncoder(tokenizer, inputs.data)
        for number in range(len(inputs.data.sources)):
            for one, record in islice(_records(inputs, number), count):
                yield _previewed(one, record, inputs, encoder, tokenizer)


def prepared_row(artifact: Artifact, number: int, side: Side) -> list[PreviewRow]:
    """The rows of a sequence as training reads them, with where they come from.

    Args:
        artifact: A prepare artifact.
        number: Number of the sequence on its side.
        side: `train` or `held_out`.

    Raises:
        IndexError: There is no such sequence.
    """
    rows = PreparedSide(artifact, side).sequence(number)
    tokenizer = load_tokenizer(artifact.local_dir("tokenizer"))
    return [
        _row(
            f"{file_at(artifact, row.source)}:{row.line}",
            TokenRow(row.input_ids, row.trained),
            tokenizer,
        )
        for row in rows
    ]


def source_columns(spec: PrepareSpec) -> list[SourceColumns]:
    """The columns of each source's first rows.

    Raises:
        DataError: A file can't be read, or is of no known type.
    """
    inputs = recognise(spec.files, spec.data, in_doubt="auto")
    listed: list[SourceColumns] = []
    for number, source in enumerate(inputs.data.sources):
        columns: dict[str, str] = {}
        for _, record in islice(_records(inputs, number), _COLUMN_ROWS):
            for name, value in (record.fields or {}).items():
                if columns.get(name, "None") == "None":
                    columns[name] = _shortened(repr(value))
        types = {one.layout.name for one in inputs.files if one.file.source == number}
        listed.append(SourceColumns(number, tuple(sorted(types)), source.format, columns))
    return listed


def _records(inputs: Inputs, number: int) -> Iterator[tuple[Input, Record]]:
    source = inputs.data.sources[number]
    for one in inputs.files:
        if one.file.source == number:
            for record in records_of(one, source):
                if not record.is_blank:
                    yield one, record


def _tokenizer(spec: PrepareSpec, inputs: Inputs, folder: Path) -> TokenizerFolder:
    trained = spec.model.tokenizer.train is not None
    if trained or not local_tokenizer(spec.model, spec.base, folder, options=spec.options):
        make_tokenizer(spec, inputs, folder)
    return load_tokenizer(folder, spec.data.stop_tokens)


def _previewed(
    one: Input, record: Record, inputs: Inputs, encoder: RowEncoder, tokenizer: TokenizerFolder
) -> PreviewRow:
    place = f"{one.file.uri}:{record.number}"
    try:
        parsed = parse_row(record.values(), inputs.data.sources[one.file.source])
        (tokens,) = encoder.encode([encoder.render(parsed.content)])
    except Rejected as error:
        return PreviewRow(place, reason=f"{error.reason}: {error.detail}")
    row = _row(place, tokens, tokenizer)
    if not row.num_trained:
        return PreviewRow(place, row.parts, row.num_tokens, 0, "no_trained_token")
    too_long = row.num_tokens > inputs.data.max_length and inputs.data.overlong == "drop"
    reason = f"overlong: {row.num_tokens:,} tokens" if too_long else ""
    return PreviewRow(place, row.parts, row.num_tokens, row.num_trained, reason)


def _row(place: str, tokens: TokenRow, tokenizer: TokenizerFolder) -> PreviewRow:
    ids, trained = tokens.input_ids.tolist(), tokens.trained.tolist()
    return PreviewRow(place, decoded(tokenizer, ids[:_MAX_TOKENS], trained), len(ids), sum(trained))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_EXAMPLE else text[: _MAX_EXAMPLE - 1] + "…"
