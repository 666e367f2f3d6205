"""The model that training starts from: where it is, what identifies it, and its first weights.

`resolve_base` answers without torch or transformers, so that a plan takes a second. Only
safetensors and GGUF are read: no pickle from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from configs.experiment import Experiment
from configs.model import ModelConfig
from configs.secret import Secret
from tasks import hub
from tasks.files import cache_folder, hash_bytes
from tasks.fingerprint import canonical_json
from tasks.origin import (
    MODEL_FILES,
    TOKENIZER_FILES,
    BaseModel,
    find_origin,
    folder_identity,
    model_files,
)
from tasks.storage import Location

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "BaseModel",
    "build_model",
    "local_base",
    "resolve_base",
]


def resolve_base(model: ModelConfig, options: Mapping[str, Secret] | None = None) -> BaseModel:
    """Finds what `model.base` names and hashes it.

    A path that exists is a folder or `.gguf` file; `scheme://` is an fsspec URI of one; anything
    else has to be a hub id.

    Args:
        model: The `model` section.
        options: fsspec options for URIs.

    Raises:
        ConfigError: It names none of these.
        ResourceError: It looks like a hub id, but the hub can't be reached.
    """
    if model.base is None:
        return BaseModel("scratch", "", {"kind": "scratch"})
    found = find_origin(model.base, model.revision, options or {}, where="model.base")
    if found.kind == "folder":
        files = folder_identity(found, model_files(found, code=model.trust_remote_code))
        return BaseModel("folder", found.location, {"files": files}, found.options)
    return found


def local_base(base: BaseModel) -> Path:
    """A local folder (GGUF: file) with the base, fetched into the cache where it isn't local.

    Raises:
        ConfigError: The hub has no such repository or revision.
        ResourceError: The hub or the store can't be reached.
        ValueError: The model is new and has no files.
    """
    if base.kind == "scratch":
        raise ValueError("a new model has no base")
    if base.kind == "hub":
        return hub.download(base.location, base.identity["commit"])
    location = Location(base.location, base.options)
    if location.is_local:
        return Path(location.path)
    if base.kind == "gguf":
        sources, contents = {location.name: location}, base.identity
    else:
        names = [name for name in location.list() if _is_wanted(name)]
        sources = {name: location.join(name) for name in names}
        contents = folder_identity(base, names)
    # What is there now, not what the base's weights were: its tokenizer may have changed alone.
    key = canonical_json({"from": location.uri, "files": contents})
    folder = cache_folder() / "bases" / hash_bytes(key)[:32]
    for name, source in sources.items():
        if not (folder / name).exists():
            source.download(folder / name)
    return folder / location.name if base.kind == "gguf" else folder


def _is_wanted(name: str) -> bool:
    known = any(pattern.fullmatch(name) for pattern in (MODEL_FILES, TOKENIZER_FILES))
    return known or name.endswith(".py")


def build_model(
    experiment: Experiment, tokenizer_dir: Path, base: BaseModel | None = None
) -> PreTrainedModel:
    """The weights before the first step, in fp32, with the same bytes in every process.

    Args:
        experiment: Its `model`, `train.attention` and `train.seed` count.
        tokenizer_dir: Folder of the tokenizer that the data was prepared with.
        base: The resolved base; None: it is resolved here.

    Raises:
        ConfigError: The weights can't be read, or have fewer embeddings than the tokenizer ids.
    """
    from tasks import initial_weights

    base = base or resolve_base(experiment.model, experiment.compute.storage_options)
    attention = experiment.train.attention
    if experiment.model.scratch is not None:
        return initial_weights.new_model(
            experiment.model.scratch, tokenizer_dir, attention=attention, seed=experiment.train.seed
        )
    return initial_weights.loaded_model(
        local_base(base),
        tokenizer_dir,
        attention=attention,
        trust_remote_code=experiment.model.trust_remote_code,
    )
