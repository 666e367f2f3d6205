"""The tokenizer of a base model: what identifies it, and its files, with the chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from configs.errors import ConfigError
from configs.model import ModelConfig
from configs.secret import Secret
from tasks.base_model import local_base
from tasks.errors import first_line, storage_errors
from tasks.files import hash_bytes
from tasks.origin import (
    GENERATION_CONFIG,
    TOKENIZER_FILES,
    BaseModel,
    find_origin,
    folder_identity,
    nearest_path,
)
from tasks.prepare.template import shipped_template, shipped_templates
from tasks.storage import Location


def tokenizer_identity(
    model: ModelConfig, base: BaseModel, options: Mapping[str, Secret] | None = None
) -> dict[str, Any]:
    """JSON that changes with any byte of tokenizer, chat template or generation config.

    The generation config says which tokens end a turn. A tokenizer trained on the data is
    determined by the config and the data, so only its template stands here.

    Raises:
        ConfigError: There is no tokenizer where it should be.
    """
    identity: dict[str, Any] = {}
    if model.tokenizer.train is None:
        origin = _tokenizer_origin(model, base, options or {})
        if origin.kind == "folder":
            identity["files"] = folder_identity(origin, _tokenizer_files(origin))
        else:
            identity["origin"] = origin.identity
        if origin != base and GENERATION_CONFIG not in identity.get("files", {}):
            identity["generation"] = _generation_identity(base)
    template = chat_template_text(model, options)
    if template is not None:
        identity["chat_template"] = hash_bytes(template.encode())
    return identity


def _generation_identity(base: BaseModel) -> Any:
    """Of the generation config that comes with the base; a folder's file, else the whole base."""
    if base.kind == "folder":
        return base.identity.get("files", {}).get(GENERATION_CONFIG)
    return base.identity


def chat_template_text(
    model: ModelConfig, options: Mapping[str, Secret] | None = None
) -> str | None:
    """The template that `model.tokenizer.chat_template` names; None: the tokenizer's own counts.

    Raises:
        ConfigError: It is neither a shipped template nor a file with UTF-8 text.
        ResourceError: The file can't be read.
    """
    name = model.tokenizer.chat_template
    if name is None:
        return None
    if name in shipped_templates():
        return shipped_template(name)
    data = (
        Location(name, options or {}).read_if_exists() if "://" in name else _local_template(name)
    )
    if data is None:
        raise _no_template(f"there is no template file {name}", "")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} of {name} isn't UTF-8",
            where="model.tokenizer.chat_template",
            hint="save the template as UTF-8",
            code="template_encoding",
        ) from error


def _local_template(name: str) -> bytes:
    path = Path(name)
    with storage_errors(name):
        if path.is_dir():
            inside = min(path.glob("*.jinja"), default=None)
            raise _no_template(f"{name} is a folder", f"did you mean {inside}?" if inside else "")
        if not path.is_file():
            raise _no_template(f"there is no template file {name}", nearest_path(path))
        return path.read_bytes()


def _no_template(rule: str, hint: str) -> ConfigError:
    return ConfigError(
        rule,
        where="model.tokenizer.chat_template",
        hint=hint or f"give the path of a .jinja file, or {', '.join(shipped_templates())}",
        code="template_not_found",
    )


def load_tokenizer_files(
    model: ModelConfig,
    base: BaseModel,
    into: Path,
    *,
    options: Mapping[str, Secret] | None = None,
) -> None:
    """Saves a tokenizer that isn't trained, with its chat template, into a folder.

    Writes tokenizer.json, tokenizer_config.json, chat_template.jinja (if there is a template) and
    generation_config.json (if tokenizer's origin or base has one).

    Raises:
        ConfigError: There is no tokenizer there, or only one without a tokenizer.json form, or a
            generation config is broken.
    """
    from transformers import AutoTokenizer

    origin = _tokenizer_origin(model, base, options or {})
    source = local_base(origin)
    gguf = origin.kind == "gguf"
    arguments: dict[str, Any] = {"gguf_file": source.name} if gguf else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source.parent if gguf else source),
            local_files_only=True,
            trust_remote_code=model.trust_remote_code,
            **arguments,
        )
    except Exception as error:
        # `tokenizers` raises bare exceptions, and the files come from outside: they are at fault.
        raise _no_tokenizer(origin, first_line(error)) from error
    if not tokenizer.is_fast:
        raise _no_tokenizer(origin, "it has no tokenizer.json form")
    template = chat_template_text(model, options)
    if template is not None:
        tokenizer.chat_template = template
    into.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(into))
    drop_json_keys(into / "tokenizer_config.json", "local_files_only", "is_local", "name_or_path")
    _save_generation_config([origin, base], into)


def local_tokenizer(
    model: ModelConfig,
    base: BaseModel,
    into: Path,
    *,
    options: Mapping[str, Secret] | None = None,
) -> bool:
    """As `load_tokenizer_files`, but by copying, without `transformers`; false: it can't be copied.

    Raises:
        ConfigError: The chat template isn't one.
    """
    source = local_base(_tokenizer_origin(model, base, options or {}))
    if not (source / "tokenizer.json").is_file():
        return False
    into.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if TOKENIZER_FILES.fullmatch(path.name) or path.name == GENERATION_CONFIG:
            shutil.copyfile(path, into / path.name)
    own = into / "chat_template.jinja"
    template = chat_template_text(model, options)
    if template is None and not own.exists():
        template = _template_in_config(into / "tokenizer_config.json")
    if template is not None:
        own.write_text(template, encoding="utf-8")
    return True


def _template_in_config(path: Path) -> str | None:
    """The chat template in an older tokenizer_config.json, of several the one named default."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(found, list):
        named = {one["name"]: one["template"] for one in cast("list[dict[str, str]]", found)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def drop_json_keys(path: Path, *keys: str) -> None:
    """Removes top-level keys that tell of this machine from a JSON file that a library wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    kept = {name: value for name, value in content.items() if name not in keys}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _tokenizer_origin(
    model: ModelConfig, base: BaseModel, options: Mapping[str, Secret]
) -> BaseModel:
    given = model.tokenizer
    if given.source is not None:
        return find_origin(given.source, given.revision, options, where="model.tokenizer.source")
    return base


def _tokenizer_files(origin: BaseModel) -> list[str]:
    names = Location(origin.location, origin.options).list()
    found = [n for n in names if TOKENIZER_FILES.fullmatch(n) or n == GENERATION_CONFIG]
    if not any(TOKENIZER_FILES.fullmatch(n) for n in found):
        raise _no_tokenizer(origin, "the folder has no tokenizer file")
    return found


def _save_generation_config(origins: list[BaseModel], into: Path) -> None:
    """Copies the first generation config found; a GGUF file's is made from its header."""
    for origin in origins:
        if origin.kind == "scratch":
            continue
        source = local_base(origin)
        if origin.kind == "gguf":
            from tasks import initial_weights

            initial_weights.gguf_generation_config(source).save_pretrained(str(into))
            drop_json_keys(into / GENERATION_CONFIG, "_from_model_config")
            return
        if (source / GENERATION_CONFIG).is_file():
            _check_generation_config(source / GENERATION_CONFIG)
            shutil.copyfile(source / GENERATION_CONFIG, into / GENERATION_CONFIG)
            return


def _check_generation_config(path: Path) -> None:
    """Refuses what couldn't be read later: a broken file, or ids of EOS that aren't ids."""
    try:
        content = json.loads(path.read_bytes())
        given = content.get("eos_token_id")
        ids = cast("list[Any]", given if isinstance(given, list) else [given or 0])
        if any(type(one) is not int or one < 0 for one in ids):
            raise ValueError(f"eos_token_id is {given!r}, not an id or a list of ids")
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} isn't a generation config: {first_line(error)}",
            where="model.base",
            hint="mend or remove the file",
            code="bad_generation_config",
        ) from error


def _no_tokenizer(origin: BaseModel, reason: str) -> ConfigError:
    return ConfigError(
        f"no tokenizer can be loaded from {origin.location}: {reason}",
        where="model.tokenizer",
        hint="give tokenizer.source: a folder with tokenizer.json, or a hub id",
        code="no_tokenizer",
    )
