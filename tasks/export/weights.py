"""The files of an exported model folder, written from a training checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import storage_errors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LEAKS = ("_name_or_path", "local_files_only")
_GENERATION_CONFIG = "generation_config.json"


def load_checkpoint(folder: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    """The trained model in fp32 and evaluation mode, on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=trust_remote_code
    ).eval()


def save_model(model: PreTrainedModel, folder: Path, *, dtype: str) -> None:
    """Write weights (safetensors) and config.json; the model is cast to `dtype` in place.

    The same weights give the same bytes: tensors are laid out by name, and config.json tells
    nothing about where the model was loaded from.

    Raises:
        ResourceError: The folder can't be written (`no_space`, ...).
    """
    import torch

    cast: Any = model.to
    cast(getattr(torch, dtype))
    model.config.use_cache = True
    with storage_errors(str(folder)):
        model.save_pretrained(folder)
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {key: value for key, value in config.items() if key not in _LEAKS})


def write_generation_config(
    tokenizer_dir: Path, folder: Path, *, stop_ids: tuple[int, ...], pad_id: int
) -> None:
    """Write generation_config.json: the base's own values, with every end-of-turn id.

    Args:
        tokenizer_dir: Prepared tokenizer, with the base's generation_config.json where it has one.
        folder: The exported folder.
        stop_ids: Ids that end a turn; `generate` stops at any of them.
        pad_id: Id that fills up a batch.
    """
    source = tokenizer_dir / _GENERATION_CONFIG
    base: dict[str, Any] = json.loads(source.read_text("utf-8")) if source.exists() else {}
    kept = {key: value for key, value in base.items() if key not in (*_LEAKS, "_from_model_config")}
    write_json(
        folder / _GENERATION_CONFIG,
        kept | {"eos_token_id": list(stop_ids), "pad_token_id": pad_id},
    )


def copy_tokenizer(tokenizer_dir: Path, folder: Path) -> None:
    """Copy the tokenizer's files, chat template included, byte for byte."""
    with storage_errors(str(folder)):
        for path in sorted(tokenizer_dir.iterdir()):
            if path.name not in (_GENERATION_CONFIG, "config.json"):
                shutil.copyfile(path, folder / path.name)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON as the libraries of the field do: two spaces, sorted keys, a final newline."""
    with storage_errors(str(path)):
        path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
