"""Estimates for a plan: steps, tokens, parameters and memory, before anything is computed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from configs.data import DataConfig
from configs.experiment import Experiment
from tasks import hub
from tasks.artifacts import Artifact
from tasks.base_model import BaseModel, local_base
from tasks.prepare.recognise import layout_of
from tasks.prepare.records import BrokenFileError, data_error, decompressed
from tasks.prepare.records_table import table_errors
from tasks.prepare.sources import SourceFile, open_source

ADAMW_BYTES = 16
"""Bytes a parameter in fp32 training with AdamW: weight, gradient, two moments."""
_SAMPLE_BYTES = 2**18
_BYTES_PER_TOKEN = 4
"""Of English text under a BPE of usual size."""


@dataclass(frozen=True)
class TrainingSize:
    """How much there is to train on.

    Attributes:
        sequences: Rows, or with packing bins of rows.
        tokens: Tokens of the training rows.
        exact: Prepare has counted them; else they are judged by the first file of each source.
    """

    sequences: int
    tokens: int
    exact: bool


def training_size(
    experiment: Experiment, files: tuple[SourceFile, ...], prepared: Artifact | None
) -> TrainingSize:
    """What prepare counted, or else an estimate from the sources' bytes.

    Raises:
        ResourceError: A source can't be read.
        DataError: A source is broken, or of no known type.
    """
    if prepared is not None:
        counted = prepared.result
        return TrainingSize(counted["train_sequences"], counted["train_tokens"], exact=True)
    rows = tokens = 0.0
    data = experiment.data
    for number, source in enumerate(data.sources):
        own = [file for file in files if file.source == number]
        if source.split == "held_out" or not own:
            continue
        share = 1 - data.held_out_fraction if source.split == "auto" else 1.0
        first = _first_file(own[0], data)
        scale = sum(file.size for file in own) * share / own[0].size
        rows += first.rows * scale
        tokens += first.text_bytes * scale / _BYTES_PER_TOKEN
    sequences = tokens / data.max_length if data.packing else rows
    return TrainingSize(max(1, round(sequences)), max(1, round(tokens)), exact=False)


@dataclass(frozen=True)
class _FileSize:
    """What a file is judged to hold: rows, and bytes of text."""

    rows: float
    text_bytes: float


def _first_file(file: SourceFile, data: DataConfig) -> _FileSize:
    """Of Parquet what its metadata says; of the rest by the beginning of the file."""
    source, layout = data.sources[file.source], layout_of(file, data)
    with open_source(file, source) as stream:
        try:
            if layout.file_type == "parquet" and layout.compression == "none":
                return _parquet_size(stream)
            with decompressed(stream, layout.compression) as content:
                head = content.read(_SAMPLE_BYTES)
                read = len(head) if layout.compression == "none" else max(1, stream.tell())
        except BrokenFileError as error:
            raise data_error(file.uri, error) from error
    ends = head.count(b"\n") if layout.counts_lines else head.count(b"}")
    return _FileSize(max(1, ends) * file.size / read, len(head) * file.size / read)


def _parquet_size(stream: BinaryIO) -> _FileSize:
    import pyarrow.parquet as pq

    with table_errors("Parquet"):
        metadata: Any = pq.read_metadata(cast("Any", stream))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return _FileSize(metadata.num_rows, sum(group.total_byte_size for group in groups))


def base_parameters(base: BaseModel) -> int | None:
    """Counted from the headers of weight files that are on this machine; None: they are broken."""
    if base.kind == "hub":
        path = hub.cached_folder(base.location, base.identity["commit"])
    else:
        path = None if "://" in base.location else local_base(base)
    if path is None:
        return None
    try:
        if base.kind == "gguf":
            from gguf import GGUFReader

            return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)
        return sum(_safetensors_elements(file) for file in path.glob("*.safetensors"))
    except Exception:
        # Only an estimate: what is wrong with the files is told when they are loaded.
        return None


def _safetensors_elements(path: Path) -> int:
    """Elements in a safetensors file, from its header (an 8-byte length, then JSON).

    Raises:
        ValueError: The header is cut short.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"a header of {length} bytes in a shorter file")
        header = json.loads(stream.read(length))
    count = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            count += size
    return count


def scratch_parameters(experiment: Experiment) -> int | None:
    """Of a Llama-shaped decoder; None for others, whose shapes vary too much, and for nonsense."""
    scratch = experiment.model.scratch
    if scratch is None or scratch.model_type not in ("llama", "mistral", "qwen3"):
        return None
    fixed = scratch.fixed
    trained = experiment.model.tokenizer.train
    vocab = fixed.get("vocab_size") or (trained.vocab_size if trained else None)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = [_size(value) for value in (vocab, *(fixed.get(name) for name in names))]
    sizes = [size for size in shape if size is not None]
    if len(sizes) < len(shape):
        return None
    vocab, hidden, inner, layers, heads = sizes
    head_dim = _size(fixed.get("head_dim") or hidden // heads)
    kv_heads = _size(fixed.get("num_key_value_heads") or heads)
    if head_dim is None or kv_heads is None:
        return None
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    layer = attention + 3 * hidden * inner + 2 * hidden
    embeddings = vocab * hidden * (1 if fixed.get("tie_word_embeddings") else 2)
    return embeddings + layers * layer + hidden


def _size(value: object) -> int | None:
    """A whole number from 1 on; None: it is anything else."""
    return value if type(value) is int and value > 0 else None


def worker_bytes(
    experiment: Experiment, parameters: int | None, prepared: Artifact | None
) -> int | None:
    """Weights, gradients and moments, and the logits with their gradient in fp32."""
    if parameters is None:
        return None
    micro_batch = 1 if experiment.data.packing else experiment.train.micro_batch_size
    vocab = prepared.result["vocab_size"] if prepared else 50_000
    logits = micro_batch * experiment.data.max_length * vocab * 4 * 2
    return parameters * ADAMW_BYTES + logits
