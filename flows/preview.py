"""The `preview` command: rows as they become tokens, in colour; from a config, or of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from configs.errors import ConfigError
from flows.terminal import OUT
from tasks.storage import Location

if TYPE_CHECKING:
    from tasks.prepare.preview import PreviewRow
    from tasks.prepare.stage import PrepareSpec

TRAINED, CONTEXT, SPECIAL = "bold green", "dim", "reverse"
_OPEN, _CLOSE = "⟦", "⟧"


def rows(config: str, overrides: Sequence[str], count: int) -> Iterator[PreviewRow]:
    """The first rows of each source of an experiment, as they would be prepared.

    Raises:
        ConfigError: The config, tokenizer or template isn't one.
        DataError: A source can't be read.
    """
    from tasks.prepare.preview import preview_rows

    return preview_rows(_spec(config, overrides), count)


def prepared(run: str, number: int, *, held_out: bool, workspace: Location) -> list[PreviewRow]:
    """The rows of a sequence that a run was trained or evaluated on.

    Raises:
        ConfigError: There is no such run, it has prepared nothing, or no such sequence.
    """
    from flows.records import artifact_of_run
    from tasks.prepare.preview import prepared_row

    record, artifact = artifact_of_run(workspace, run, "prepare")
    if artifact is None:
        raise ConfigError(
            "this run has no prepared data",
            where=record.run_id,
            hint=f"it is {record.status}; `modelmill run` again prepares it",
            code="not_prepared",
        )
    side = "held_out" if held_out else "train"
    try:
        return prepared_row(artifact, number, side)
    except IndexError as error:
        raise ConfigError(
            f"there is no {error} on the side {side}",
            where="--row",
            hint="sequences are counted from 0",
            code="no_such_row",
        ) from error


def columns(config: str, overrides: Sequence[str], *, show: bool) -> list[dict[str, Any]]:
    """The columns of each source, with an example each.

    Raises:
        ConfigError: The config isn't one.
        DataError: A source can't be read.
    """
    from tasks.prepare.preview import source_columns

    found = source_columns(_spec(config, overrides))
    for source in found if show else ():
        types = ", ".join(source.file_types)
        OUT.print(f"[bold]data.sources\\[{source.number}][/]  {types}, format {source.format}")
        for name, example in source.columns.items():
            OUT.print(f"  {escape(name):<20} {escape(example)}", soft_wrap=True)
    return [asdict(source) for source in found]


def show(found: Iterable[PreviewRow], *, printed: bool) -> list[dict[str, Any]]:
    """Prints rows as they come, if wished, and gives them as objects."""
    shown: list[dict[str, Any]] = []
    for row in found:
        shown.append(asdict(row))
        if printed:
            _print(row)
    if printed and shown and OUT.is_terminal:
        OUT.print(
            Text.assemble(
                ("trained", TRAINED), "  ", ("context", CONTEXT), "  ", ("special token", SPECIAL)
            )
        )
    return shown


def _print(row: PreviewRow) -> None:
    OUT.print(Text(row.place, "bold cyan"), soft_wrap=True)
    if row.reason:
        OUT.print(Text(f"not used: {row.reason}", "bold red"), soft_wrap=True)
    text = Text()
    for part in row.parts:
        style = TRAINED if part.trained else CONTEXT
        # Without colours the marks of the data report tell what is trained.
        plain = part.trained and not OUT.is_terminal
        shown = f"{_OPEN}{part.text}{_CLOSE}" if plain else part.text
        text.append(shown, f"{style} {SPECIAL}" if part.special else style)
    if row.parts:
        OUT.print(text, soft_wrap=True)
        OUT.print(Text(f"{row.num_tokens:,} tokens, {row.num_trained:,} trained", "italic"))
    OUT.print()


def _spec(config: str, overrides: Sequence[str]) -> PrepareSpec:
    from flows.loading import load
    from tasks.base_model import resolve_base
    from tasks.prepare.stage import prepare_spec

    experiment = load(config, overrides)
    base = resolve_base(experiment.model, experiment.compute.storage_options)
    return prepare_spec(experiment, base)
