"""The prepare stage: sources to tokens.

Reads the files of `data.sources`. Writes `tokenizer/`, `shards/NNNNN.arrow` (every valid row once,
in source order), `plan/` (which rows make a sequence, on which side), `report.json`, `report.md`.
Nothing here imports what the work itself needs, so that asking what is there stays quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from configs.data import DataConfig
from configs.errors import ConfigError
from configs.experiment import Experiment
from configs.model import ModelConfig
from configs.secret import Secret
from tasks.artifacts import Artifact, OpenArtifact
from tasks.base_model import BaseModel, base_changed, base_now
from tasks.base_tokenizer import chat_template_text, tokenizer_identity
from tasks.files import hash_bytes
from tasks.fingerprint import canonical_json
from tasks.prepare.chat import shipped_template
from tasks.prepare.sources import SourceFile, resolve_sources
from tasks.stage import Context, Stage

ENGINE = "tokenizers"
_MAX_LISTED_FILES = 1000
_DEFAULT_TEMPLATE = "chatml"


@dataclass(frozen=True)
class PrepareSpec:
    """What prepare works from.

    Attributes:
        data: The `data` section.
        model: The `model` section; its tokenizer counts.
        base: The resolved base model.
        files: The files of all sources, in order.
        tokenizer: Identity of tokenizer and chat template.
        options: fsspec options for what lies behind a URI.
    """

    data: DataConfig
    model: ModelConfig
    base: BaseModel
    files: tuple[SourceFile, ...]
    tokenizer: Mapping[str, Any]
    options: Mapping[str, Secret] = field(default_factory=dict[str, Secret])


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """What prepare made.

    Attributes:
        rows_read: Rows in the sources.
        rows_kept: Rows in the plan.
        dropped: The other rows, by reason.
        train_rows: Rows to train on.
        held_out_rows: Rows to evaluate on.
        train_sequences: Sequences to train on: rows, or with packing bins of rows.
        train_tokens: Tokens of the training rows.
        trained_tokens: Those of them that the loss counts.
        held_out_tokens: Tokens of the held-out rows.
        vocab_size: Ids of the tokenizer.
        max_length: Tokens to which a row is cut when it is read.
        tokenizer_sha256: Hash over the tokenizer's files.
        template_sha256: Hash of the chat template; None if there is none.
    """

    rows_read: int
    rows_kept: int
    dropped: dict[str, int]
    train_rows: int
    held_out_rows: int
    train_sequences: int
    train_tokens: int
    trained_tokens: int
    held_out_tokens: int
    vocab_size: int
    max_length: int
    tokenizer_sha256: str
    template_sha256: str | None


def prepare_spec(experiment: Experiment, base: BaseModel) -> PrepareSpec:
    """Finds and hashes what prepare reads.

    Raises:
        ConfigError: The tokenizer or chat template isn't one.
        DataError: A source isn't there, is empty, or isn't JSONL.
        ResourceError: A store or file can't be reached.
    """
    options = experiment.compute.storage_options
    return PrepareSpec(
        data=experiment.data,
        model=experiment.model,
        base=base,
        files=resolve_sources(experiment.data, options),
        tokenizer=_tokenizer_identity(experiment.model, base, options),
        options=options,
    )


def check_tokenizer_unchanged(spec: PrepareSpec) -> None:
    """Compares tokenizer and chat template that were read with what they were at the start.

    Raises:
        DataError: Their content is another, or they are gone (`base_changed`).
        ResourceError: They can't be reached any more.
    """
    where = spec.model.tokenizer.source or spec.base.location
    try:
        now = _tokenizer_identity(spec.model, base_now(spec.model, spec.base), spec.options)
    except ConfigError as error:
        raise base_changed(where) from error
    if now.get("chat_template") != spec.tokenizer.get("chat_template"):
        raise base_changed(spec.model.tokenizer.chat_template or where)
    if now != spec.tokenizer:
        raise base_changed(where)


def _tokenizer_identity(
    model: ModelConfig, base: BaseModel, options: Mapping[str, Secret]
) -> dict[str, Any]:
    identity = tokenizer_identity(model, base, options)
    if model.tokenizer.train is not None:
        template = trained_template(model, options)
        identity["chat_template"] = hash_bytes(template.encode())
    return identity


def trained_template(model: ModelConfig, options: Mapping[str, Secret]) -> str:
    """The chat template of a tokenizer that is trained on the data: the config's, else ChatML."""
    template = chat_template_text(model, options)
    return shipped_template(_DEFAULT_TEMPLATE) if template is None else template


class PrepareStage(Stage[PrepareSpec, PrepareResult]):
    """Sources to tokens; see the module's text."""

    name: ClassVar[str] = "prepare"
    version: ClassVar[int] = 2
    libraries: ClassVar[tuple[str, ...]] = ("tokenizers", "pyarrow", "jinja2")

    def identity(self, spec: PrepareSpec) -> dict[str, Any]:
        """The data section, the files' content in order, tokenizer, template and engine."""
        train = spec.model.tokenizer.train
        return {
            "data": spec.data.identity(),
            "files": _files_identity(spec.files),
            "tokenizer": {
                **spec.tokenizer,
                "train": None if train is None else train.identity(),
                "engine": ENGINE,
            },
        }

    def run(
        self,
        context: Context,
        spec: PrepareSpec,
        inputs: Mapping[str, Artifact],
        output: OpenArtifact,
    ) -> PrepareResult:
        """Makes what is missing: tokenizer, units, plan, report.

        Raises:
            DataError: Too many rows are bad, no row is left to train on, or a file was changed.
            ConfigError: A conversation needs a chat template and there is none, or it needs a date.
            ResourceError: A store or the machine fails.
        """
        from tasks.prepare.execute import Preparation

        return Preparation(context, spec, output).run()

    def still_true(self, spec: PrepareSpec, artifact: Artifact) -> bool:
        """Whether a few rows, prepared again with the artifact's tokenizer, come out the same.

        Raises:
            ConfigError: The chat template can't be used any more.
            ResourceError: A source or the artifact can't be read.
        """
        from tasks.prepare.probe import rows_come_out_the_same

        return rows_come_out_the_same(spec, artifact)


def _files_identity(files: tuple[SourceFile, ...]) -> Any:
    """Source number and content of each file; one hash over them where there are many."""
    entries = [{"source": file.source, **file.identity} for file in files]
    if len(entries) <= _MAX_LISTED_FILES:
        return entries
    return {"count": len(entries), "sha256": hash_bytes(canonical_json(entries))}
