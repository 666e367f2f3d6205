"""The `model` section: which weights training starts from, and with which tokenizer.

Where the bytes of base, tokenizer and template are found is execution: their content is what counts,
and the stages put its hash into their identity.
"""

from __future__ import annotations

from pydantic import JsonValue

from configs.section import Section, execution, identity


class TrainTokenizerConfig(Section):
    """A byte-level BPE trained on the data."""

    vocab_size: int = identity(
        1024, ge=260, description="Tokens in the vocabulary, special ones included."
    )
    max_rows: int = identity(
        100_000, ge=1, description="Rows (from the first on) that the tokenizer is trained on."
    )


class TokenizerConfig(Section):
    """Where the tokenizer and the chat template come from."""

    source: str | None = execution(
        None, description="Hub id, folder or fsspec URI of another tokenizer; null: the base's."
    )
    train: TrainTokenizerConfig | None = identity(
        None, description="Train a byte-level BPE on the data instead."
    )
    chat_template: str | None = execution(
        None, description="Path of a .jinja file, or `chatml`; null: the tokenizer's own."
    )


class ScratchConfig(Section):
    """A new model with random weights."""

    model_type: str = identity("llama", description="Architecture as `transformers` names it.")
    fixed: dict[str, JsonValue] = identity(
        default_factory=dict, description="Values of the architecture's config."
    )


class ModelConfig(Section):
    """Base weights or a new model; exactly one of `base` and `scratch`."""

    base: str | None = execution(
        None, description="Hub id, local folder, fsspec URI of a folder, or a .gguf file."
    )
    revision: str | None = execution(None, description="Branch, tag or commit of a hub id.")
    trust_remote_code: bool = identity(
        False, description="Run Python code that comes with the base model."
    )
    scratch: ScratchConfig | None = identity(None, description="Make a new model instead.")
    tokenizer: TokenizerConfig = identity(
        TokenizerConfig(), description="Tokenizer and chat template."
    )
