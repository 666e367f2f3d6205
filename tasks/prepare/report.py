"""What was read, kept and dropped: `report.json` for programs, `report.md` for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from configs.errors import DataError
from tasks.artifacts import Artifact
from tasks.prepare.recognise import Inputs
from tasks.prepare.sources import SourceFile
from tasks.prepare.splits import Unit
from tasks.prepare.units import MAX_EXAMPLES, UnitResult

_MAX_FILES = 1000
_SOURCE_FIGURES = ("read", "rejected", "rows", "tokens")
_PERCENTILES = (50, 90, 99)
_OPEN, _CLOSE = "⟦", "⟧"


@dataclass(frozen=True)
class RejectedRow:
    """A bad row: where it stands, a stable code, and a sentence for people."""

    file: str
    line: int
    reason: str
    detail: str

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}: {self.detail}"


@dataclass(frozen=True)
class SampleRow:
    """A row as its tokens decode: texts in order, each trained or not."""

    file: str
    line: int
    parts: tuple[tuple[str, bool], ...]

    def marked(self) -> str:
        """The text with its trained parts between ⟦ and ⟧."""
        return "".join(f"{_OPEN}{text}{_CLOSE}" if on else text for text, on in self.parts)


@dataclass(frozen=True)
class Reading:
    """What all units read together.

    Attributes:
        rows_read: Lines that aren't blank.
        dropped: Rows that no sequence holds, by reason.
        num_rejected: Those of them that are bad rows.
        notes: What happened without spoiling a row, by code.
        rejected: The first bad rows, in the order of the files.
        fatal: The first row that the config doesn't tolerate.
        first_lines: For each unit the number of the line at which its first piece begins.
        sources: For each source `read`, `rejected`, `rows` in the plan and their `tokens`.
        moved_hash: Hash of the rows that the held-out side gets because it would be empty.
    """

    rows_read: int
    dropped: Mapping[str, int]
    num_rejected: int
    notes: Mapping[str, int]
    rejected: tuple[RejectedRow, ...]
    fatal: RejectedRow | None
    first_lines: tuple[int, ...]
    sources: Mapping[int, Mapping[str, int]]
    moved_hash: bytes | None


def summarise(results: Sequence[UnitResult], files: Sequence[SourceFile]) -> Reading:
    """Adds up what the units counted.

    Args:
        results: All units, in order.
        files: All files.
    """
    first_lines = _first_lines([result.unit for result in results], results)
    dropped: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    rejected: list[RejectedRow] = []
    sources: dict[int, Counter[str]] = {}
    fatal: RejectedRow | None = None
    for result, first_line in zip(results, first_lines, strict=True):
        dropped.update(result.counts.dropped)
        notes.update(result.counts.notes)
        for number, counted in result.counts.sources.items():
            sources.setdefault(int(number), Counter()).update(counted)
        for file, line, *why in result.counts.rejected[: MAX_EXAMPLES - len(rejected)]:
            rejected.append(RejectedRow(files[file].uri, line + first_line - 1, *why))
        for file, line, *why in result.counts.fatal:
            fatal = fatal or RejectedRow(files[file].uri, line + first_line - 1, *why)
    counts = [result.counts for result in results]
    hashes = [count.smallest_auto_hash for count in counts if count.smallest_auto_hash]
    empty = hashes and not any(count.held_out_rows for count in counts)
    return Reading(
        rows_read=sum(count.rows_read for count in counts),
        dropped=dict(sorted(dropped.items())),
        num_rejected=sum(count.num_rejected for count in counts),
        notes=dict(sorted(notes.items())),
        rejected=tuple(rejected),
        fatal=fatal,
        first_lines=first_lines,
        sources=sources,
        moved_hash=bytes.fromhex(min(hashes)) if empty else None,
    )


def check_rejected(reading: Reading, max_rejected: float) -> None:
    """Refuses data with too many bad rows.

    Args:
        reading: What was read.
        max_rejected: Largest share of bad rows (0 to 1).

    Raises:
        DataError: There is no row at all (`no_rows`), too many are bad (`too_many_rejected`), or
            one is there that the config doesn't tolerate (the row's own code).
    """
    if reading.fatal is not None:
        raise DataError(
            f"{reading.fatal.reason}: {reading.fatal.detail}",
            where=reading.fatal.place,
            hint=f"mend the row, or set data.{reading.fatal.reason} to something else than error",
            code=reading.fatal.reason,
        )
    if reading.rows_read == 0:
        raise DataError(
            "the sources have no row, only blank lines",
            where="data.sources",
            hint="give files with one JSON object a line",
            code="no_rows",
        )
    share = reading.num_rejected / reading.rows_read
    if share <= max_rejected:
        return
    first = "\n  ".join(str(row) for row in reading.rejected)
    raise DataError(
        f"{reading.num_rejected:,} of {reading.rows_read:,} rows ({share:.2%}) are bad; "
        f"data.limits.max_rejected allows {max_rejected:.2%}",
        where=reading.rejected[0].place,
        hint=f"the first of them:\n  {first}\n  mend them, or raise data.limits.max_rejected",
        code="too_many_rejected",
    )


@dataclass(frozen=True)
class Report:
    """All figures of prepared data.

    Attributes:
        rows: `read`, `kept`, `train`, `held_out`.
        dropped: Rows dropped, by reason.
        notes: What happened without spoiling a row, by code.
        sequences: Sequences of each side.
        tokens: `train`, `held_out`, and `trained` of the training side.
        trained_share: Trained tokens of the training side over its tokens.
        lengths: Percentiles of the rows' tokens, before `data.max_length` is applied.
        tokenizer_sha256: Hash over the tokenizer's files.
        template_sha256: Hash of the chat template; None if there is none.
        sources: What was read of each source, and what its rows were taken for.
        files: The files (at most 1,000), with size and content hash.
        samples: The first rows, decoded.
        rejected: The first bad rows.
    """

    rows: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: Mapping[str, int]
    sequences: Mapping[str, int]
    tokens: Mapping[str, int]
    trained_share: float
    lengths: Mapping[str, int]
    tokenizer_sha256: str
    template_sha256: str | None
    sources: Sequence[Mapping[str, Any]]
    files: Sequence[Mapping[str, Any]]
    samples: Sequence[SampleRow]
    rejected: Sequence[RejectedRow]

    def to_json(self) -> bytes:
        """The content of `report.json`."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()

    def to_markdown(self) -> bytes:
        """The content of `report.md`."""
        figures = {
            "rows read": self.rows["read"],
            "rows kept": self.rows["kept"],
            "training rows": self.rows["train"],
            "held-out rows": self.rows["held_out"],
            "training sequences": self.sequences["train"],
            "training tokens": self.tokens["train"],
            "held-out tokens": self.tokens["held_out"],
        }
        lines = [
            "# Data report",
            "",
            *_table("figure", "number", {name: f"{value:,}" for name, value in figures.items()}),
            f"| trained share of training tokens | {self.trained_share:.1%} |",
            f"| tokenizer | `{self.tokenizer_sha256[:16]}` |",
            f"| chat template | `{(self.template_sha256 or 'none')[:16]}` |",
            *_source_table(self.sources),
            *_section("Dropped rows", "reason", self.dropped),
            *_section("Notes", "what", self.notes),
            *_section("Tokens of a row", "percentile", self.lengths),
        ]
        if self.samples:
            lines += [
                "",
                "## Sample rows",
                "",
                f"Trained tokens stand between {_OPEN} and {_CLOSE}.",
            ]
        for row in self.samples:
            lines += ["", f"`{row.file}:{row.line}`", "", *_indented(row.marked())]
        if self.rejected:
            lines += ["", "## Rejected rows", "", *(f"- `{row}`" for row in self.rejected)]
        return ("\n".join(lines) + "\n").encode()


def file_list(inputs: Inputs) -> list[dict[str, Any]]:
    """The files as the report names them."""
    return [
        {"number": number, "uri": one.file.uri, "bytes": one.file.size, **one.file.identity}
        for number, one in enumerate(inputs.files[:_MAX_FILES])
    ]


def file_at(artifact: Artifact, number: int) -> str:
    """The file of that number in prepared data, as its report names it."""
    files = json.loads(artifact.read_bytes("report.json"))["files"]
    return files[number]["uri"] if number < len(files) else f"file {number}"


def source_list(inputs: Inputs, reading: Reading) -> list[dict[str, Any]]:
    """Each source: its files, what they and their rows were taken for, and what was counted."""
    listed: list[dict[str, Any]] = []
    for number, source in enumerate(inputs.data.sources):
        own = [one for one in inputs.files if one.file.source == number]
        counted = reading.sources.get(number, {})
        listed.append(
            {
                "files": len(own),
                "file_types": sorted({one.layout.name for one in own}),
                "format": source.format,
                "split": source.split,
                **{name: counted.get(name, 0) for name in _SOURCE_FIGURES},
            }
        )
    return listed


def percentiles(lengths: Mapping[int, int]) -> dict[str, int]:
    """Percentiles (nearest rank) and maximum.

    Args:
        lengths: How many rows have which length.
    """
    total = sum(lengths.values())
    if total == 0:
        return {}
    found: dict[str, int] = {}
    passed = 0
    wanted = [(f"p{p}", -(-p * total // 100)) for p in _PERCENTILES]
    for length in sorted(lengths):
        passed += lengths[length]
        while wanted and passed >= wanted[0][1]:
            found[wanted.pop(0)[0]] = length
    return {**found, "max": max(lengths)}


def _first_lines(units: Sequence[Unit], results: Sequence[UnitResult]) -> tuple[int, ...]:
    """Line numbers go on from one unit to the next where both read the same file."""
    first_lines: list[int] = []
    counted = 0
    for unit, result in zip(units, results, strict=True):
        counted = counted if unit.pieces[0].start > 0 else 0
        first_lines.append(counted + 1)
        counted += result.counts.lines[0]
    return tuple(first_lines)


def _source_table(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """A column for each source."""
    if not sources:
        return []
    names = ["files", "file_types", "format", *_SOURCE_FIGURES]
    shown = {
        name: [
            f"{value:,}" if isinstance(value := source[name], int) else _words(value)
            for source in sources
        ]
        for name in names
    }
    head = " | ".join(f"data.sources[{number}]" for number in range(len(sources)))
    return [
        "",
        "## Sources",
        "",
        f"| | {head} |",
        "|---|" + "---:|" * len(sources),
        *(f"| {name.replace('_', ' ')} | {' | '.join(row)} |" for name, row in shown.items()),
    ]


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _section(title: str, column: str, figures: Mapping[str, int]) -> list[str]:
    if not figures:
        return []
    shown = {name: f"{value:,}" for name, value in figures.items()}
    return ["", f"## {title}", "", *_table(column, "number", shown)]


def _table(left: str, right: str, rows: Mapping[str, str]) -> list[str]:
    return [f"| {left} | {right} |", "|---|---:|", *(f"| {a} | {b} |" for a, b in rows.items())]


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
