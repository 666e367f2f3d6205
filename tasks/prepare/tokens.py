"""From a row to token ids and the mask that says which of them are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from configs.data import DataConfig
from configs.errors import ConfigError
from tasks.prepare.chat import ChatTemplate, Refused, render_with_spans
from tasks.prepare.engine import word_engine
from tasks.prepare.formats import Content, PromptRow, TokensRow
from tasks.prepare.masks import Text, trained_by_bytes, trained_tokens
from tasks.prepare.records import Rejected
from tasks.prepare.tokenizer import TokenizerFolder
from tasks.prepare.turns import regular_turns, trained_spans

_SHIPPED = "chatml"


@dataclass(frozen=True)
class TokenRow:
    """A tokenised row.

    Attributes:
        input_ids: uint32 of shape (length,).
        trained: bool of shape (length,).
    """

    input_ids: npt.NDArray[np.uint32]
    trained: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RenderedRow:
    """A row as text.

    Attributes:
        texts: Tokenised apart and put together in this order.
        plain: No template made it: BOS goes before it and a trained EOS after it.
        ready: The tokens of a row that came as tokens; then it has no texts.
    """

    texts: tuple[Text, ...]
    plain: bool
    ready: TokenRow | None = None

    @property
    def num_chars(self) -> int:
        """Characters to tokenise."""
        return sum(len(text.text) for text in self.texts)


class RowEncoder:
    """Renders and tokenises the rows of a run.

    Args:
        folder: The tokenizer.
        data: The `data` section.

    Attributes:
        notes: How often something happened that doesn't spoil a row, by code.
    """

    def __init__(self, folder: TokenizerFolder, data: DataConfig) -> None:
        self._folder, self._data = folder, data
        self._vocab_size = folder.tokenizer.get_vocab_size()
        self._engine = word_engine(folder.tokenizer)
        self._template: ChatTemplate | None = None
        if folder.chat_template is not None:
            self._template = ChatTemplate(
                folder.chat_template, special_tokens=folder.special_tokens, date=data.template_date
            )
        self.notes: Counter[str] = Counter()

    def render(self, row: Content) -> RenderedRow:
        """The row as text with its trained characters.

        Raises:
            Rejected: The chat template can't show the row whole, the mask can't be proven, or an
                id isn't in the vocabulary.
            ConfigError: A conversation needs a chat template and there is none, or it needs a date.
        """
        if isinstance(row, PromptRow):
            # Tokenised apart, as a model that is asked sees the tokens of just the prompt.
            completion = Text(row.completion, ((0, len(row.completion)),))
            trained = ((0, len(row.prompt)),) if self._data.train_on == "all" else ()
            return RenderedRow((Text(row.prompt, trained), completion), plain=True)
        if isinstance(row, TokensRow):
            return RenderedRow((), plain=False, ready=self._checked(row))
        if self._template is None:
            raise _no_template()
        row = regular_turns(row, self._data.irregular_turns, self.notes)
        try:
            rendered = render_with_spans(
                self._template,
                row.messages,
                tools=row.tools,
                stop_strings=self._folder.stop_strings,
            )
        except Refused as error:
            raise Rejected(error.reason, error.detail) from error
        trained = trained_spans(row, rendered, self._data)
        self.notes.update(rendered.notes)
        return RenderedRow((Text(rendered.text, trained),), plain=False)

    def _checked(self, row: TokensRow) -> TokenRow:
        largest = max(row.input_ids)
        if largest >= self._vocab_size:
            raise Rejected(
                "bad_tokens", f"the id {largest} isn't in the vocabulary of {self._vocab_size:,}"
            )
        ids = np.array(row.input_ids, dtype=np.uint32)
        return TokenRow(ids, np.array(row.trained, dtype=np.bool_))

    def encode(self, rows: Sequence[RenderedRow]) -> list[TokenRow]:
        """Ids and masks of rows, in their order."""
        texts = [text for row in rows for text in row.texts]
        encoded = iter(self._encoded(texts))
        return [self._assemble(row, [next(encoded) for _ in row.texts]) for row in rows]

    def _encoded(self, texts: Sequence[Text]) -> list[TokenRow]:
        """By the word engine; what it can't encode, or all where there is none, by `tokenizers`."""
        done = [self._by_words(text) for text in texts]
        left = [text for text, tokens in zip(texts, done, strict=True) if tokens is None]
        encodings = iter(
            self._folder.tokenizer.encode_batch(
                [text.text for text in left], add_special_tokens=False
            )
        )
        return [
            _token_row(text, next(encodings)) if tokens is None else tokens
            for text, tokens in zip(texts, done, strict=True)
        ]

    def _by_words(self, text: Text) -> TokenRow | None:
        ids = self._engine.encode(text.text) if self._engine is not None else None
        if self._engine is None or ids is None:
            return None
        return TokenRow(ids, trained_by_bytes(text, ids, self._engine.byte_lengths))

    def _assemble(self, row: RenderedRow, parts: Sequence[TokenRow]) -> TokenRow:
        if row.ready is not None:
            return row.ready
        if len(parts) == 1 and not row.plain:
            return parts[0]
        ids = [part.input_ids for part in parts]
        masks = [part.trained for part in parts]
        if row.plain:
            bos = np.array(self._folder.bos_ids, dtype=np.uint32)
            if len(bos) and not _starts_with(np.concatenate(ids), bos):
                ids.insert(0, bos)
                masks.insert(0, np.zeros(len(bos), dtype=np.bool_))
            if self._folder.eos_id is None:
                self.notes["no_stop_token"] += 1
            else:
                ids.append(np.array([self._folder.eos_id], dtype=np.uint32))
                masks.append(np.full(1, self._data.train_end_of_turn, dtype=np.bool_))
        return TokenRow(np.concatenate(ids), np.concatenate(masks))


def _token_row(text: Text, encoding: Encoding) -> TokenRow:
    ids = np.array(encoding.ids, dtype=np.uint32)
    return TokenRow(ids, trained_tokens(text, encoding))


def _starts_with(ids: npt.NDArray[np.uint32], start: npt.NDArray[np.uint32]) -> bool:
    return bool(np.array_equal(ids[: len(start)], start))


def _no_template() -> ConfigError:
    return ConfigError(
        "the tokenizer has no chat template, and the rows are conversations",
        where="model.tokenizer.chat_template",
        hint=f"give the path of a .jinja file, or the shipped {_SHIPPED}",
        code="no_chat_template",
    )
