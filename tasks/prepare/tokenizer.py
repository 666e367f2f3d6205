"""The tokenizer of an artifact: a folder that `AutoTokenizer` loads, read here without it.

Reading it takes `tokenizers` and JSON only. `train_tokenizer` makes one from the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from configs.data import DataConfig
from configs.errors import ConfigError
from configs.model import TrainTokenizerConfig

_PAD, _BEGIN, _END = "<|pad|>", "<|im_start|>", "<|im_end|>"
_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_TEMPLATE, _GENERATION = "chat_template.jinja", "generation_config.json"


@dataclass(frozen=True)
class TokenizerFolder:
    """What a tokenizer's files say.

    Attributes:
        tokenizer: Gives ids and *untrimmed* character offsets; it adds no special token.
        bos_ids: What the tokenizer puts before a text that goes through no template.
        eos_id: Id of the end-of-sequence token; None if it has none.
        stop_ids: Ids that end a turn.
        stop_strings: Their texts.
        special_tokens: Names and texts that a chat template can print.
        chat_template: Jinja text; None if there is none.
    """

    tokenizer: Tokenizer
    bos_ids: tuple[int, ...]
    eos_id: int | None
    stop_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    special_tokens: Mapping[str, str]
    chat_template: str | None


@dataclass(frozen=True)
class Part:
    """Tokens in a row that are all trained or all not, all special or none, as they decode."""

    text: str
    trained: bool
    special: bool


def load_tokenizer(folder: Path, stop_tokens: Sequence[str] = ()) -> TokenizerFolder:
    """Reads the tokenizer in a folder.

    Args:
        folder: With tokenizer.json, and what else `save_pretrained` writes.
        stop_tokens: Tokens that end a turn beside the EOS of tokenizer and generation config.

    Raises:
        ConfigError: A stop token isn't in the vocabulary.
    """
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_json(folder / _CONFIG)
    special = {
        name: text
        for name, value in config.items()
        if name.endswith("_token") and (text := _token_text(value)) is not None
    }
    bos_ids = _bos_ids(tokenizer, special, config.get("add_bos_token"))
    # ByteLevel's post-processor trims white space off the offsets, and a token that reaches into
    # untrained white space would look trained. Nothing else of it is wanted either.
    tokenizer.post_processor = cast("Any", None)
    eos_id = tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
    stop_ids = _stop_ids(tokenizer, eos_id, folder, stop_tokens)
    template = folder / _TEMPLATE
    return TokenizerFolder(
        tokenizer=tokenizer,
        bos_ids=bos_ids,
        eos_id=eos_id,
        stop_ids=stop_ids,
        stop_strings=tuple(t for i in stop_ids if (t := tokenizer.id_to_token(i)) is not None),
        special_tokens=special,
        chat_template=template.read_text(encoding="utf-8") if template.exists() else None,
    )


def stop_token_ids(tokenizer_dir: Path, data: DataConfig) -> tuple[int, ...]:
    """Ids that end a turn: EOS of tokenizer and generation config, and `data.stop_tokens`.

    Raises:
        ConfigError: A token of `data.stop_tokens` isn't in the vocabulary.
    """
    return load_tokenizer(tokenizer_dir, data.stop_tokens).stop_ids


def train_tokenizer(
    texts: Iterable[str], config: TrainTokenizerConfig, template: str, into: Path
) -> None:
    """Trains a byte-level BPE and saves it as a folder that `AutoTokenizer` loads.

    Digits are tokens of their own, every byte is in the vocabulary, and ChatML's `<|im_end|>` is
    EOS. The same texts in the same order give the same bytes.

    Args:
        texts: What it is trained on.
        config: Size of the vocabulary.
        template: The chat template that goes with it.
        into: Folder to write into.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[_PAD, _BEGIN, _END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    into.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(into / _TOKENIZER))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _END,
        "pad_token": _PAD,
        "additional_special_tokens": [_BEGIN],
        "clean_up_tokenization_spaces": False,
    }
    (into / _CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (into / _TEMPLATE).write_text(template, encoding="utf-8")


def decoded(
    tokenizer: TokenizerFolder, input_ids: Sequence[int], trained: Sequence[bool]
) -> tuple[Part, ...]:
    """The text of each run of tokens that are alike."""
    added = tokenizer.tokenizer.get_added_tokens_decoder()
    special = {number for number, token in added.items() if token.special}
    kinds = [(trained[at], token in special) for at, token in enumerate(input_ids)]
    runs: list[Part] = []
    for (on, is_special), places in groupby(range(len(kinds)), key=lambda at: kinds[at]):
        ids = [input_ids[at] for at in places]
        text: Any = tokenizer.tokenizer.decode(ids, skip_special_tokens=False)
        runs.append(Part(text, on, is_special))
    return tuple(runs)


def folder_hash(folder: Path) -> str:
    """One sha256 over names and contents of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _bos_ids(tokenizer: Tokenizer, special: Mapping[str, str], add: Any) -> tuple[int, ...]:
    """What stands before a plain text: as the config says, else as the post-processor does."""
    if add is False:
        return ()
    if add is True and "bos_token" in special:
        bos_id = tokenizer.token_to_id(special["bos_token"])
        return () if bos_id is None else (bos_id,)
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start])
    return ()


def _stop_ids(
    tokenizer: Tokenizer, eos_id: int | None, folder: Path, stop_tokens: Sequence[str]
) -> tuple[int, ...]:
    found = [] if eos_id is None else [eos_id]
    generation = _read_json(folder / _GENERATION).get("eos_token_id")
    if generation is not None:
        found += generation if isinstance(generation, list) else [generation]
    for token in stop_tokens:
        token_id = tokenizer.token_to_id(token)
        if token_id is None:
            raise ConfigError(
                f"the tokenizer has no token {token!r}",
                where="data.stop_tokens",
                hint=f"its special tokens: {', '.join(_special_texts(tokenizer))}",
                code="unknown_stop_token",
            )
        found.append(token_id)
    return tuple(dict.fromkeys(found))


def _special_texts(tokenizer: Tokenizer) -> list[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special][:20]


def _token_text(value: Any) -> str | None:
    """The text of a special token, which stands as text or as an object with `content`."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("content")
    return value if isinstance(value, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
