"""The `data` section: which rows there are and how they become tokens.

Where a source lies is execution; the hash of its content stands in the identity of prepare.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from configs.section import BrokenRule, PathOrUri, Section, execution, identity

FileType = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "text"]
TextUnit = Literal["line", "paragraph", "file"]
Format = Literal[
    "auto",
    "chat",
    "prompt_completion",
    "instruction",
    "question_answer",
    "text",
    "tokens",
    "delimited",
]
IrregularTurns = Literal["merge", "keep", "drop", "error"]


class GenerateConfig(Section):
    """Rows made by a seeded generator of the project instead of read from a file."""

    name: Literal["dates"] = identity("dates", description="Which generator.")
    rows: int = identity(5000, ge=1, le=50_000, description="Rows to make.")
    part: Literal["train", "held_out"] = identity(
        "train", description="Which of the generator's two disjoint parts the rows come from."
    )
    seed: int = identity(0, description="Seed of the generator.")


class CsvConfig(Section):
    """How a CSV or TSV file is written."""

    delimiter: Annotated[str, Field(pattern=r"^[^\r\n\"]$")] | None = identity(
        None, description="Character between two fields; null: a comma, in TSV a tab."
    )
    header: bool = identity(True, description="Whether the first row names the columns.")
    columns: tuple[str, ...] = identity(
        (), description="Names of the columns of a file without header; else they are 0, 1, 2."
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """Names come from one place, and each once."""
        if self.header and self.columns:
            yield BrokenRule(
                "columns are named by the header or here, not both",
                fields=("header", "columns"),
                hint="set header: false, or rename columns with the source's columns",
            )
        if len(set(self.columns)) < len(self.columns):
            yield BrokenRule("a column's name stands there twice", fields=("columns",))


class SourceConfig(Section):
    """One source of rows: files of one type, with rows in one format."""

    path: PathOrUri | tuple[PathOrUri, ...] | None = execution(
        None,
        description="File, directory, glob or fsspec URI, or a list of them; the files' content "
        "is what counts.",
    )
    generate: GenerateConfig | None = identity(
        None, description="Make the rows with a generator instead of reading a path."
    )
    file_type: FileType = identity(
        "auto",
        description="How rows stand in a file, compressed (.gz, .zst) or not; `auto` goes by the "
        "file's name, and by its first bytes where the name doesn't tell.",
    )
    csv: CsvConfig = identity(CsvConfig(), description="How CSV and TSV files are written.")
    text_unit: TextUnit = identity(
        "line",
        description="What a row of a text file is: a line, a paragraph (up to a blank "
        "line), or the whole file.",
    )
    format: Format = identity(
        "auto",
        description="What a row means, told by its columns: chat (`messages`, `conversations`), "
        "prompt_completion (`prompt`, `completion`), instruction (`instruction`, `input`, "
        "`output`), question_answer (`question`, `answer`), text (`text`), tokens (`input_ids`, "
        "`labels`); delimited: one text cut at `delimiter`. `auto` goes by the first rows.",
    )
    columns: dict[str, str] = identity(
        default_factory=dict[str, str],
        description="Column of the file for a name that the format knows: `{question: q}`.",
    )
    split: Literal["auto", "train", "held_out"] = identity(
        "auto", description="Side of the rows; `auto` divides them by `data.held_out_fraction`."
    )
    text_column: str = identity("text", description="Column of a `text` or `delimited` row.")
    delimiter: str | None = identity(
        None, description="Text whose last occurrence divides question from answer (`delimited`)."
    )
    system: str | None = identity(
        None, description="System message of conversations that have none."
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """One origin, and a delimiter where the format needs one."""
        if (self.path is None) == (self.generate is None):
            given = "neither is" if self.path is None else "both are"
            yield BrokenRule(
                f"give either path or generate; {given} given",
                fields=("path", "generate"),
                hint="path: rows.jsonl reads a file, generate: {name: dates} makes rows",
            )
        if self.format == "delimited" and not self.delimiter:
            yield BrokenRule(
                "format delimited needs a delimiter",
                fields=("format", "delimiter"),
                hint="delimiter is the text between question and answer, such as '####'",
            )


class LimitsConfig(Section):
    """Thresholds that fail the stage. They decide whether there is a result, never which."""

    max_rejected: float = execution(
        0.01, ge=0, le=1, description="Largest share of rejected rows (0 to 1)."
    )


class DataConfig(Section):
    """Sources, split, length and packing."""

    sources: tuple[SourceConfig, ...] = identity(
        min_length=1, description="Where the rows come from, in order."
    )
    held_out_fraction: float = identity(
        0.05, gt=0, lt=1, description="Share of rows held out of sources with split `auto` (0-1)."
    )
    max_length: int = identity(
        1024, ge=8, description="Longest sequence, and size of a packed bin (tokens)."
    )
    overlong: Literal["drop", "truncate"] = identity(
        "drop", description="What happens to a row longer than `max_length`."
    )
    packing: bool = identity(
        False, description="Put several rows into one sequence; rows never see each other."
    )
    train_on: Literal["assistant", "last_assistant", "all"] = identity(
        "assistant",
        description="Which tokens are trained: the assistant's turns (of prompt/completion rows "
        "the completion), the last of them, or the whole text. A message's `train` or `weight` "
        "goes before it.",
    )
    train_end_of_turn: bool = identity(
        True, description="Whether the stop token of a trained turn is trained."
    )
    irregular_turns: IrregularTurns = identity(
        "keep",
        description="What happens to a conversation that doesn't alternate from user to assistant: "
        "merge joins turns of one speaker, keep leaves it to the template, drop leaves it out, "
        "error fails the stage.",
    )
    template_date: datetime.date | None = identity(
        None, description="The date that a chat template calling `strftime_now` sees."
    )
    stop_tokens: tuple[str, ...] = identity(
        (), description="End-of-turn tokens beside the EOS of tokenizer and generation config."
    )
    max_line_bytes: int = identity(
        64 * 2**20, ge=1024, description="Longest row of a file; a longer one is rejected (bytes)."
    )
    split_bytes: Annotated[int, Field(ge=1)] | Literal["auto"] = identity(
        "auto", description="Bytes of source a unit of work reads; auto: max(64 MiB, total/50,000)."
    )
    limits: LimitsConfig = execution(LimitsConfig(), description="Thresholds that fail the stage.")
