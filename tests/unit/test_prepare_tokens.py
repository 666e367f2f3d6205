"""Tokens: which are trained, checked against the bytes that each token stands for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from configs.data import DataConfig
from configs.errors import ConfigError
from configs.model import TrainTokenizerConfig
from tasks.prepare.chat import shipped_template
from tasks.prepare.formats import ChatRow, PromptRow
from tasks.prepare.masks import Text, trained_tokens
from tasks.prepare.records import Rejected
from tasks.prepare.tokenizer import (
    TokenizerFolder,
    folder_hash,
    load_tokenizer,
    stop_token_ids,
    train_tokenizer,
)
from tasks.prepare.tokens import RowEncoder

TEXTS = ["hello hello world\n", "é日本語 emoji 🎉🎉 12", "  the  theory of the thing"] * 4
ALPHABET = "he lo\n日🎉é 1\u2028"


def make_tokenizer(folder: Path, template: str | None = None) -> Path:
    config = TrainTokenizerConfig(vocab_size=330)
    train_tokenizer(TEXTS, config, template or shipped_template("chatml"), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TokenizerFolder:
    return load_tokenizer(folder)


def config(**fields: object) -> DataConfig:
    return DataConfig.model_validate({"sources": [{"path": "x"}], **fields})


def encoder(folder: Path) -> RowEncoder:
    return RowEncoder(load_tokenizer(folder), config())


def byte_of_symbol() -> dict[str, int]:
    """The byte that each symbol of a byte-level vocabulary stands for (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + number): byte for number, byte in enumerate(hidden)
    }


def oracle(text: Text, tokens: list[str]) -> list[bool]:
    """By bytes: a token is trained if no byte of it belongs to an untrained character."""
    owner = [n for n, character in enumerate(text.text) for _ in character.encode()]
    trained = {n for start, end in text.trained for n in range(start, end)}
    masks: list[bool] = []
    at = 0
    for token in tokens:
        masks.append(all(n in trained for n in owner[at : at + len(token)]))
        at += len(token)
    assert at == len(owner)
    return masks


@given(text=st.text(ALPHABET, min_size=1, max_size=40), data=st.data())
def test_mask_agrees_with_the_tokens_bytes(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True).map(sorted))
    spans = tuple((a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False))
    marked = Text(text, spans)
    tokenizer = ORACLE_TOKENIZER.tokenizer
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert trained_tokens(marked, encoding).tolist() == oracle(marked, encoding.tokens)


def test_partial_characters_follow_their_character(tokenizer: TokenizerFolder) -> None:
    # Not in the training texts: three tokens, one a byte.
    encoding = tokenizer.tokenizer.encode("aᚠb", add_special_tokens=False)
    assert len(encoding.ids) == 5
    mask = trained_tokens(Text("aᚠb", ((1, 2),)), encoding)
    assert mask.tolist() == [False, True, True, True, False]


def test_a_token_that_reaches_into_untrained_white_space_is_not_trained(tmp_path: Path) -> None:
    # GPT-2's own post-processor trims white space off the offsets; the mask must not follow it.
    folder = make_tokenizer(tmp_path)
    trimmed = Tokenizer.from_file(str(folder / "tokenizer.json"))
    trimmed.post_processor = processors.ByteLevel(trim_offsets=True)
    trimmed.save(str(folder / "tokenizer.json"))
    assert trimmed.encode("hello hello").offsets[-1] == (6, 11)
    encoding = load_tokenizer(folder).tokenizer.encode("hello hello", add_special_tokens=False)
    assert encoding.tokens[-1] == "Ġhello"
    assert trained_tokens(Text("hello hello", ((6, 11),)), encoding).tolist()[-1] is False
    assert trained_tokens(Text("hello hello", ((5, 11),)), encoding).tolist()[-1] is True


def test_a_token_without_characters_is_trained_between_trained_ones() -> None:
    class Encoded:
        ids = (0, 1, 2, 3)
        offsets = ((0, 1), (1, 1), (1, 2), (2, 2))

    for spans, expected in [
        (((0, 2),), [True, True, True, False]),
        (((1, 2),), [False, False, True, False]),
        (((0, 1),), [True, False, False, False]),
    ]:
        mask = trained_tokens(Text("ab", (*spans, (2, 2))), Encoded())  # pyright: ignore
        assert mask.tolist() == expected


def test_chat_row_trains_the_turn_through_its_stop_token(folder: Path) -> None:
    rows = encoder(folder)
    chat = ChatRow(
        [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    )
    (row,) = rows.encode([rows.render(chat)])
    tokenizer = load_tokenizer(folder).tokenizer
    trained = tokenizer.decode(row.input_ids[row.trained].tolist(), skip_special_tokens=False)
    assert trained == "world<|im_end|>"
    assert row.input_ids.dtype == np.uint32


def test_message_completion_trains_only_the_completion(folder: Path) -> None:
    def turn(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text}]

    rows = encoder(folder)
    chat = ChatRow([*turn("world"), *turn("the thing")], num_context=2)
    (row,) = rows.encode([rows.render(chat)])
    tokenizer = load_tokenizer(folder).tokenizer
    trained = tokenizer.decode(row.input_ids[row.trained].tolist(), skip_special_tokens=False)
    assert trained == "the thing<|im_end|>"


def test_prompt_and_completion_with_one_bos_and_a_trained_eos(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos, eos = saved.token_to_id("<|im_start|>"), saved.token_to_id("<|im_end|>")
    saved.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[("<|im_start|>", bos), ("<|im_end|>", eos)],
    )
    saved.save(str(folder / "tokenizer.json"))
    rows = encoder(folder)
    for prompt in ("hello", "<|im_start|>hello"):
        (row,) = rows.encode([rows.render(PromptRow(prompt, " world"))])
        hello = saved.encode("hello", add_special_tokens=False).ids
        world = saved.encode(" world", add_special_tokens=False).ids
        assert row.input_ids.tolist() == [bos, *hello, *world, eos]
        assert row.trained.tolist() == [False] * (1 + len(hello)) + [True] * (len(world) + 1)


@pytest.mark.parametrize("added", [True, False])
def test_bos_follows_the_tokenizers_config(tmp_path: Path, added: bool) -> None:
    folder = make_tokenizer(tmp_path)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings |= {"bos_token": {"content": "<|im_start|>"}, "add_bos_token": added}
    path.write_text(json.dumps(settings))
    loaded = load_tokenizer(folder)
    bos = loaded.tokenizer.token_to_id("<|im_start|>")
    assert loaded.bos_ids == ((bos,) if added else ())
    assert loaded.special_tokens["bos_token"] == "<|im_start|>"


def test_without_chat_template_a_conversation_is_a_config_error(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    (folder / "chat_template.jinja").unlink()
    rows = encoder(folder)
    with pytest.raises(ConfigError) as caught:
        rows.render(ChatRow([{"role": "assistant", "content": "x"}]))
    assert caught.value.code == "no_chat_template"
    assert caught.value.where == "model.tokenizer.chat_template"
    assert "chatml" in caught.value.hint
    assert rows.encode([rows.render(PromptRow("hello", "world"))])


def test_what_the_template_refuses_is_a_bad_row(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path, "{{ raise_exception('no system') }}")
    with pytest.raises(Rejected) as caught:
        encoder(folder).render(ChatRow([{"role": "assistant", "content": "x"}]))
    assert caught.value.reason == "template_error"


def test_stop_tokens_come_from_tokenizer_generation_config_and_data(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path)
    vocabulary = load_tokenizer(folder).tokenizer
    end, start = (vocabulary.token_to_id(t) for t in ("<|im_end|>", "<|im_start|>"))
    assert stop_token_ids(folder, config()) == (end,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 7]}))
    assert stop_token_ids(folder, config(stop_tokens=["<|im_start|>"])) == (end, 7, start)
    with pytest.raises(ConfigError) as caught:
        stop_token_ids(folder, config(stop_tokens=["<|end|>"]))
    assert caught.value.code == "unknown_stop_token"
    assert "<|im_end|>" in caught.value.hint


def test_trained_tokenizer_has_the_same_bytes_twice(tmp_path: Path) -> None:
    one, two = make_tokenizer(tmp_path / "one"), make_tokenizer(tmp_path / "two")
    assert folder_hash(one) == folder_hash(two)
    (two / "chat_template.jinja").write_text("other")
    assert folder_hash(one) != folder_hash(two)


def test_trained_tokenizer_knows_every_byte_and_splits_digits(tokenizer: TokenizerFolder) -> None:
    vocabulary = tokenizer.tokenizer
    assert set(byte_of_symbol()) <= set(vocabulary.get_vocab())
    assert vocabulary.encode("2024", add_special_tokens=False).tokens == ["2", "0", "2", "4"]
    text = "\x00 日本 2024\r\n"
    ids = vocabulary.encode(text, add_special_tokens=False).ids
    assert vocabulary.decode(ids, skip_special_tokens=False) == text


def test_trained_tokenizer_loads_in_transformers_with_the_same_ids(folder: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder))
    messages = [{"role": "user", "content": "hello 12"}, {"role": "assistant", "content": "日本"}]
    text = loaded.apply_chat_template(messages, tokenize=False)
    rows = encoder(folder)
    (row,) = rows.encode([rows.render(ChatRow(messages))])
    assert loaded(text, add_special_tokens=False)["input_ids"] == row.input_ids.tolist()
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|pad|>")


def _oracle_tokenizer() -> TokenizerFolder:
    """Byte-level with merges across white space and within characters, made by hand."""
    symbols = {byte: symbol for symbol, byte in byte_of_symbol().items()}
    merges: list[tuple[str, str]] = []
    for piece in ("\n\n", " h", "he", "lo", "日", "🎉", "é", " 1"):
        spelled = [symbols[byte] for byte in piece.encode()]
        merges += [("".join(spelled[:n]), spelled[n]) for n in range(1, len(spelled))]
    tokens = dict.fromkeys([*symbols.values(), *(a + b for a, b in merges)])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TokenizerFolder(tokenizer, (), None, (), (), {}, None)


ORACLE_TOKENIZER = _oracle_tokenizer()
