"""The `model` section: which weights training starts from, and with which tokenizer.

Where the bytes of base, tokenizer and template are found is execution: their content is what
counts, and the stages put its hash into their identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import JsonValue

from configs.section import BrokenRule, PathOrUri, Section, execution, identity


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

    source: PathOrUri | None = execution(
        None, description="Hub id, folder or fsspec URI of another tokenizer; null: the base's."
    )
    revision: str | None = execution(
        None, description="Branch, tag or commit of `source`, where that is a hub id."
    )
    train: TrainTokenizerConfig | None = identity(
        None, description="Train a byte-level BPE on the data instead."
    )
    chat_template: PathOrUri | None = execution(
        None, description="Path or URI of a .jinja file, or `chatml`; null: the tokenizer's own."
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """One tokenizer."""
        if self.source is not None and self.train is not None:
            yield BrokenRule(
                "give source or train, not both",
                fields=("source", "train"),
                hint="source uses a tokenizer that is there, train makes a new one",
            )
        if self.revision is not None and self.source is None:
            yield BrokenRule(
                "a revision is given without source",
                fields=("revision", "source"),
                hint="a revision is a branch, tag or commit of the hub id in source",
            )


class ScratchConfig(Section):
    """A new model with random weights."""

    model_type: str = identity("llama", description="Architecture as `transformers` names it.")
    fixed: dict[str, JsonValue] = identity(
        default_factory=dict, description="Values of the architecture's config."
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """JSON has no infinity and no NaN."""
        for name, value in self.fixed.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                yield BrokenRule(f"fixed.{name} must be finite", fields=("fixed",))


class ModelConfig(Section):
    """Base weights or a new model; exactly one of `base` and `scratch`."""

    base: PathOrUri | None = execution(
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

    def broken_rules(self) -> Iterator[BrokenRule]:
        """One start, and what goes with it."""
        if (self.base is None) == (self.scratch is None):
            given = "neither is" if self.base is None else "both are"
            yield BrokenRule(
                f"give either base or scratch; {given} given",
                fields=("base", "scratch"),
                hint="base: a hub id, folder or .gguf file; scratch: {} makes a new model",
            )
        elif self.scratch is not None and not (self.tokenizer.source or self.tokenizer.train):
            yield BrokenRule(
                "a model from scratch needs a tokenizer",
                fields=("scratch", "tokenizer"),
                hint="tokenizer: {train: {}} trains one on the data",
            )
        if self.revision is not None and self.base is None:
            yield BrokenRule(
                "a revision is given without base",
                fields=("revision", "base"),
                hint="a revision is a branch, tag or commit of the hub id in base",
            )
