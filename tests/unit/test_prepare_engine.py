"""The word engine: the ids and offsets of `tokenizers`, for whatever text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tasks.prepare.dates import generate_dates
from tasks.prepare.engine import WordEngine, word_engine
from tasks.prepare.masks import Text, trained_by_bytes, trained_tokens

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
CUTS: dict[str, Any] = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "llama3": lambda: split(LLAMA3),
    "qwen2": lambda: split(QWEN2),
}  # fmt: skip
TEXTS = [
    "It's what we'll don't I'd 'the 'twas\n'tis, they're HE'S ... ??  \t x\r\n\r\n   y\n",
    "def f(a, b):\n    return {'k': [1, 22, 333, 4444]}\n\n# naïve café — “quote” 漢字かな ١٢٣",
    *(json.dumps(row) for row in generate_dates(rows=300, seed=1, part="train")),
]


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def trained(cut: Any, *, alphabet: bool = True, size: int = 700) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>", "<|end|>x", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("def ", normalized=False)])
    return tokenizer


MADE = {name: trained(cut()) for name, cut in CUTS.items()}
ENGINES = {name: word_engine(tokenizer) for name, tokenizer in MADE.items()}
PIECES = st.one_of(
    st.sampled_from(
        ["'s", "'S", "'t", "'ll", "<|end|>", "<|end|>x", "<pad>", "def ", " ", "  ", "\n", "\r\n",
         "\t", "\x1c", "\x85", "\u00a0", "\u2028", "\u3000", "x", "É", "1", "\u0663", "½", "!", "…",
         "漢", "\U0001f469\u200d\U0001f467", "\u0301", "\u017f", "\ufeff", "\x00", "'"]
    ),
    st.text(max_size=4),
    st.text(st.characters(max_codepoint=127), max_size=8),
)  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
@given(pieces=st.lists(PIECES, max_size=14))
def test_ids_and_byte_lengths_are_those_of_tokenizers(name: str, pieces: list[str]) -> None:
    engine = ENGINES[name]
    assert engine is not None
    text = "".join(pieces)
    encoding = MADE[name].encode(text, add_special_tokens=False)
    ids = engine.encode(text)
    assert ids is not None
    assert ids.tolist() == encoding.ids
    assert int(engine.byte_lengths[ids].sum()) == len(text.encode())


def encoded(engine: WordEngine, text: str) -> list[int] | None:
    ids = engine.encode(text)
    return None if ids is None else ids.tolist()


def test_a_text_with_a_byte_that_the_vocabulary_lacks_is_left_to_tokenizers() -> None:
    tokenizer = trained(CUTS["gpt2"](), alphabet=False, size=90)
    engine = word_engine(tokenizer)
    assert engine is not None
    assert "\x04" not in "".join(TEXTS)
    for text in ("what \x04", "\x04what", "what"):
        ids = encoded(engine, text)
        assert (ids is None) == ("\x04" in text)
        assert ids in (None, tokenizer.encode(text).ids)


@pytest.mark.parametrize("name", CUTS)
def test_longer_texts_are_the_same(name: str) -> None:
    engine = ENGINES[name]
    assert engine is not None
    for text in [*TEXTS, "\n".join(TEXTS), "<|end|>".join(TEXTS)]:
        assert encoded(engine, text) == MADE[name].encode(text, add_special_tokens=False).ids


def changed(**changes: Any) -> Tokenizer:
    tokenizer = trained(CUTS["gpt2"]())
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def with_token(**settings: Any) -> Tokenizer:
    tokenizer = trained(CUTS["gpt2"]())
    tokenizer.add_special_tokens([AddedToken("<mask>", **settings)])
    return tokenizer


OTHERS: dict[str, Any] = {
    "a normaliser": lambda: changed(normalizer=normalizers.NFC()),
    "a prefix space": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "another pattern": lambda: trained(split(r"\p{L}+|\s+|.")),
    "no byte level": lambda: trained(pre_tokenizers.Whitespace()),
    "a token that takes spaces": lambda: with_token(lstrip=True),
    "a token that is a word": lambda: with_token(single_word=True),
    "another model": lambda: Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
}


@pytest.mark.parametrize("made", OTHERS.values(), ids=list(OTHERS))
def test_other_tokenizers_are_left_to_tokenizers(made: Any) -> None:
    assert word_engine(made()) is None


def test_many_words_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.prepare.engine._MAX_WORDS", 10)
    engine = word_engine(MADE["gpt2"])
    assert isinstance(engine, WordEngine)
    for number in range(100):
        text = f"word{'x' * number} {number}"
        assert encoded(engine, text) == MADE["gpt2"].encode(text).ids
    assert len(engine._known) <= 10  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", CUTS)
@given(pieces=st.lists(PIECES, min_size=1, max_size=12), data=st.data())
def test_masks_by_bytes_are_those_by_characters(
    name: str, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    engine = ENGINES[name]
    assert engine is not None
    edges = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    spans = tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b)
    marked = Text(text, spans)
    ids = engine.encode(text)
    assert ids is not None
    found = trained_by_bytes(marked, ids, engine.byte_lengths)
    encoding = MADE[name].encode(text, add_special_tokens=False)
    assert found.tolist() == trained_tokens(marked, encoding).tolist()
