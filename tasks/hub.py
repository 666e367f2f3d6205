"""The Hugging Face hub: names become commits, commits become local folders.

With `HF_HUB_OFFLINE=1`, or where the hub can't be reached, the local cache answers.
"""

from __future__ import annotations

import re
from pathlib import Path

from configs.errors import ConfigError, ResourceError
from tasks.errors import first_line, unwritable

_COMMIT = re.compile(r"[0-9a-f]{40}")
_OFFLINE = (
    "give what needs no hub: a local folder, a .gguf file as model.base, or with HF_HUB_OFFLINE=1 "
    "a model that is in the hub's local cache"
)
_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"]


def resolve_commit(
    name: str, revision: str | None, *, where: str, nearest: str, looks_local: bool
) -> str:
    """The commit that a branch, tag or commit of a repository stands for.

    Args:
        name: Hub id, `owner/name`.
        revision: Branch, tag or commit; None: `main`.
        where: Config path named in errors.
        nearest: Hint at a local path that was perhaps meant; may be empty.
        looks_local: The name could be a path: the folder that it would lie in is there.

    Raises:
        ConfigError: There is no such repository or revision, offline it isn't in the cache, or
            the hub can't be asked about what could as well be a local path.
        ResourceError: The hub can't be reached and the cache doesn't have it.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of the HTTP package it is built on
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import validate_repo_id

    hint = nearest or "check the id, or give a local folder with config.json or a .gguf file"
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(
            f"{name} is no local path, and no id that the hub could have",
            where=where,
            hint=hint,
            code="not_a_model",
        ) from error
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    cached = _cached_commit(name, revision or "main")
    if constants.HF_HUB_OFFLINE:
        if cached is not None:
            return cached
        raise ConfigError(
            f"{name} is neither a local path nor in the hub's local cache, and the hub is off",
            where=where,
            hint=hint,
            code="not_a_model",
        )
    try:
        commit = HfApi().model_info(name, revision=revision, timeout=10).sha
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        at = f" at {revision}" if revision else ""
        raise ConfigError(
            f"{name} is no local path, and the hub has no such model{at} (or you have no access)",
            where=where,
            hint=hint,
            code="not_a_model",
        ) from error
    except (OfflineModeIsEnabled, HTTPError, OSError) as error:
        if cached is not None:
            return cached
        failure = ConfigError if looks_local else ResourceError
        raise failure(
            f"{name} is no local path, and the hub can't be reached: {type(error).__name__}",
            where=where,
            hint=f"{nearest} or {_OFFLINE}" if nearest else _OFFLINE,
            code="not_a_model" if looks_local else "hub_unreachable",
        ) from error
    assert commit is not None
    return commit


def download(name: str, commit: str) -> Path:
    """The folder of one commit in the hub's local cache, fetched where it is missing.

    Raises:
        ConfigError: There is no such repository or commit.
        ResourceError: The hub can't be reached.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage] - of the HTTP package it is built on
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=_PATTERNS))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ConfigError(
            f"the hub has no {name} at {commit}", where="model.base", code="not_a_model"
        ) from error
    except (HTTPError, OSError) as error:
        if (full := unwritable(error, constants.HF_HUB_CACHE)) is not None:
            raise full from error
        raise ResourceError(
            f"{name} can't be fetched from the hub: {first_line(error)}",
            where="model.base",
            hint="check the network; what was fetched is kept and the same command goes on. "
            f"Without a network {_OFFLINE}",
            code="hub_unreachable",
        ) from error


def cached_folder(name: str, commit: str) -> Path | None:
    """The folder of one commit in the hub's local cache; None: it isn't there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=commit, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _cached_commit(name: str, revision: str) -> str | None:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE).expanduser()
    reference = folder / repo_folder_name(repo_id=name, repo_type="model") / "refs" / revision
    return reference.read_text().strip() if reference.is_file() else None
