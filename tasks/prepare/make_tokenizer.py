"""The tokenizer of an experiment, put into a folder: the base's, another one's, or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tasks.base_tokenizer import load_tokenizer_files
from tasks.prepare.formats import ChatRow, Content, PromptRow, parse_row
from tasks.prepare.recognise import Inputs, records_of
from tasks.prepare.records import Rejected
from tasks.prepare.sources import check_unchanged
from tasks.prepare.stage import PrepareSpec, trained_template
from tasks.prepare.tokenizer import train_tokenizer


def make_tokenizer(spec: PrepareSpec, inputs: Inputs, folder: Path) -> None:
    """Writes the tokenizer's files into a folder.

    Args:
        spec: What is prepared.
        inputs: Its files; a trained tokenizer is trained on their first rows.
        folder: Where to write.

    Raises:
        ConfigError: The tokenizer or chat template isn't one.
        DataError: A file can't be read, or was changed meanwhile.
    """
    train = spec.model.tokenizer.train
    if train is None:
        load_tokenizer_files(spec.model, spec.base, folder, options=spec.options)
        return
    texts = islice(_rows(inputs), train.max_rows)
    template = trained_template(spec.model, spec.options)
    train_tokenizer((text for row in texts for text in row), train, template, folder)
    for file in spec.files:
        check_unchanged(file)


def _rows(inputs: Inputs) -> Iterator[list[str]]:
    """The texts of each valid row, in the order of the sources."""
    for one in inputs.files:
        source = inputs.data.sources[one.file.source]
        for record in records_of(one, source):
            if record.is_blank:
                continue
            try:
                yield _texts(parse_row(record.values(), source).content)
            except Rejected:
                continue


def _texts(row: Content) -> list[str]:
    """What a row says, without its form."""
    if isinstance(row, PromptRow):
        return [row.prompt, row.completion]
    if not isinstance(row, ChatRow):
        return []
    contents = [message.get("content") for message in row.messages]
    return [content for content in contents if isinstance(content, str)]
