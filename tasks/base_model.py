"""The model that training starts from: where it is, what identifies it, and its first weights.

`resolve_base` answers without torch or transformers, so that a plan takes a second. Only
safetensors and GGUF are read: no pickle from outside.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError, DataError
from configs.experiment import Experiment
from configs.model import ModelConfig
from configs.secret import Secret
from tasks import hub
from tasks.files import cache_folder, hash_bytes
from tasks.fingerprint import canonical_json
from tasks.hashcache import content_identity
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
    "base_changed",
    "base_now",
    "build_model",
    "check_base_unchanged",
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


def base_now(model: ModelConfig, base: BaseModel) -> BaseModel:
    """What lies now where a base was found; a hub's commit and a new model stay what they are.

    Raises:
        ConfigError: It isn't a model any more.
        ResourceError: It can't be reached any more.
    """
    if base.kind in ("hub", "scratch"):
        return base
    return resolve_base(model.model_copy(update={"base": base.location}), base.options)


def check_base_unchanged(model: ModelConfig, base: BaseModel) -> None:
    """Compares a base that was read with what it was when the run began.

    Raises:
        DataError: Its content is another, or not a model any more (`base_changed`).
        ResourceError: It can't be reached any more.
    """
    try:
        same = base_now(model, base).identity == base.identity
    except ConfigError as error:
        raise base_changed(base.location) from error
    if not same:
        raise base_changed(base.location)


def base_changed(where: str) -> DataError:
    """The error for a base or tokenizer that isn't what the fingerprint says."""
    return DataError(
        "it isn't what it was when the run began: a file was changed meanwhile",
        where=where,
        hint="wait until it is written, then run the same command again; on a cluster, every node "
        "has to see the same files there",
        code="base_changed",
    )


def local_base(base: BaseModel) -> Path:
    """A local folder (GGUF: file) with the base, fetched into the cache where it isn't local.

    Raises:
        ConfigError: The hub has no such repository or revision.
        DataError: It was changed while it was fetched (`base_changed`).
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
        sources = {location.name: location}
    else:
        names = [name for name in location.list() if _is_wanted(name)]
        sources = {name: location.join(name) for name in names}
    contents = _contents(base, sources)
    # What is there now, not what the base's weights were: its tokenizer may have changed alone.
    key = canonical_json({"from": location.uri, "files": contents})
    folder = cache_folder() / "bases" / hash_bytes(key)[:32]
    missing = [name for name in sources if not (folder / name).exists()]
    for name in missing:
        sources[name].download(folder / name)
    if missing and _contents(base, sources) != contents:
        # What was fetched must not stay under the name of what was there before.
        shutil.rmtree(folder)
        raise base_changed(location.uri)
    return folder / location.name if base.kind == "gguf" else folder


def _contents(base: BaseModel, sources: Mapping[str, Location]) -> dict[str, Any]:
    """What the store knows of the files of a remote base."""
    return {name: content_identity(file.uri, base.options) for name, file in sources.items()}


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
        DataError: The base isn't what it was when it was resolved (`base_changed`).
    """
    from tasks import initial_weights

    base = base or resolve_base(experiment.model, experiment.compute.storage_options)
    attention = experiment.train.attention
    if experiment.model.scratch is not None:
        return initial_weights.new_model(
            experiment.model.scratch, tokenizer_dir, attention=attention, seed=experiment.train.seed
        )
    try:
        return initial_weights.loaded_model(
            local_base(base),
            tokenizer_dir,
            attention=attention,
            trust_remote_code=experiment.model.trust_remote_code,
        )
    finally:
        # Where loading failed, too: what is just being written is no model yet.
        check_base_unchanged(experiment.model, base)
