"""Where a model or tokenizer lies, and the hashes that identify it. Light: nothing is loaded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from configs.errors import ConfigError
from configs.secret import Secret
from tasks import hub
from tasks.errors import storage_errors
from tasks.hashcache import content_hash, content_identity
from tasks.storage import Location

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
GENERATION_CONFIG = "generation_config.json"
MODEL_FILES = re.compile(
    r"config\.json|generation_config\.json|.*\.safetensors|.*\.safetensors\.index\.json"
)
TOKENIZER_FILES = re.compile(
    r"tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.(json|txt)|merges\.txt|.*\.model|.*\.jinja|chat_template\.json"
)


@dataclass(frozen=True)
class BaseModel:
    """Where training starts.

    Attributes:
        kind: A hub repository, a folder, a GGUF file, or a new model with random weights.
        location: Hub id, absolute path or URI; empty for a new model.
        identity: JSON that changes with the weights' bytes (hub: the commit).
        options: fsspec options of a URI.
    """

    kind: Literal["hub", "folder", "gguf", "scratch"]
    location: str
    identity: dict[str, Any]
    options: Mapping[str, Secret] = field(default_factory=dict[str, Secret])


def find_origin(
    name: str, revision: str | None, options: Mapping[str, Secret], *, where: str
) -> BaseModel:
    """What a name stands for; a folder's files aren't hashed yet.

    Args:
        name: Path, URI or hub id.
        revision: Branch, tag or commit of a hub id.
        options: fsspec options of a URI.
        where: Config path named in errors.

    Raises:
        ConfigError: It is no folder, no GGUF file, no URI and no model of the hub.
        ResourceError: It looks like a hub id, but the hub can't be reached; or what is there can't
            be read.
    """
    path = Path(name)
    with storage_errors(name):
        is_there, is_folder = path.exists(), path.is_dir()
    if "://" in name or is_there:
        location = Location(name, options) if "://" in name else Location(str(path))
        if name.endswith(".gguf") and not is_folder:
            return BaseModel(
                "gguf", location.uri, {"gguf": _gguf_identity(location, where)}, options
            )
        if location.is_local and not is_folder:
            raise _not_a_base(name, where, f"{path.name} is a file, but not a .gguf file")
        return BaseModel("folder", location.uri, {}, options)
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        commit = hub.resolve_commit(
            name,
            revision,
            where=where,
            nearest=nearest_path(path),
            looks_local=path.absolute().parent.is_dir(),
        )
        return BaseModel("hub", name, {"hub": name, "commit": commit})
    raise _not_a_base(name, where, "there is no such folder or file, and it isn't a hub id", path)


def model_files(base: BaseModel, *, code: bool) -> list[str]:
    """Names of the files of a folder that decide what the model computes.

    Args:
        base: A folder.
        code: Python files count as well.

    Raises:
        ConfigError: There is no config, or no weights as safetensors.
    """
    location = Location(base.location, base.options)
    names = location.list()
    if "config.json" not in names:
        inside = next((n for n in names if n.endswith(".gguf")), None)
        hint = f"did you mean {base.location}/{inside}?" if inside else _child_with_config(location)
        raise _not_a_base(base.location, "model.base", "the folder has no config.json", hint=hint)
    if not any(name.endswith(".safetensors") for name in names):
        raise _not_a_base(
            base.location,
            "model.base",
            "the folder has no .safetensors file",
            hint="convert the weights to safetensors first; pickled weights aren't read",
        )
    return [n for n in names if MODEL_FILES.fullmatch(n) or (code and n.endswith(".py"))]


def folder_identity(origin: BaseModel, names: list[str]) -> dict[str, Any]:
    """The content hash of files of a folder, by name (remote: what the store knows of them)."""
    folder = Location(origin.location, origin.options)
    if folder.is_local:
        return {name: content_hash(Path(folder.path) / name) for name in names}
    return {name: content_identity(folder.join(name).uri, origin.options) for name in names}


def _gguf_identity(location: Location, where: str) -> Any:
    if not location.is_local:
        return content_identity(location.uri, location.options)
    with storage_errors(location.path), Path(location.path).open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise _not_a_base(location.uri, where, "the file doesn't begin with the bytes GGUF")
    return content_hash(Path(location.path))


def nearest_path(path: Path) -> str:
    """A hint at the path that was perhaps meant; empty if there is none."""
    parent = path.absolute().parent
    try:
        names = [child.name for child in parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else ""


def _child_with_config(location: Location) -> str:
    for name in location.list():
        if location.join(name, "config.json").exists():
            return f"did you mean {location.uri}/{name}?"
    return "give the folder that holds config.json and the .safetensors files"


def _not_a_base(
    name: str, where: str, rule: str, path: Path | None = None, *, hint: str = ""
) -> ConfigError:
    return ConfigError(
        f"{name} isn't a model: {rule}",
        where=where,
        hint=hint
        or (nearest_path(path) if path else "")
        or "give a hub id (owner/name), a folder with config.json, its URI, or a .gguf file",
        code="not_a_model",
    )
