"""Failures of the operating system, of stores and of Ray, as errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator

from configs.errors import ModelmillError, ResourceError

LASTING = frozenset({"no_space", "no_permission", "not_a_folder"})
"""Codes of a `ResourceError` that stands until somebody mends the machine: no retry helps."""

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (*_FULL_DISK, errno.EROFS)


@contextlib.contextmanager
def storage_errors(where: str, *, remote: bool = False) -> Generator[None]:
    """Turn what the operating system or a store reports into a `ResourceError` naming `where`.

    A full or read-only disk is known also where a library hides it in an error of its own.

    Args:
        where: Path or URI that the block works on.
        remote: The block talks to a store. Each store's package has exceptions of its own, not all
            of them `OSError`; with this every one of them counts as a storage failure.
    """
    try:
        yield
    except ModelmillError:
        raise
    except Exception as error:
        found = unwritable(error, where)
        if found is None and isinstance(error, OSError):
            found = as_resource_error(error, where)
        if found is not None:
            raise found from error
        if not remote:
            raise
        raise ResourceError(
            f"the store failed: {type(error).__name__}: {error}",
            where=where,
            hint="check address, credentials and network, then run the same command again",
            code="storage_failed",
        ) from error


@contextlib.contextmanager
def ray_errors() -> Generator[None]:
    """Turn the loss of what Ray runs (a worker, a node, Ray itself) into a `ResourceError`.

    What a worker's code raised isn't a loss and passes.

    Raises:
        ResourceError: Something was lost (`worker_lost`).
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        if not is_loss(error):
            raise
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ResourceError(
            f"a worker, a node or Ray itself was lost: {type(error).__name__}: {reason}",
            where="compute.address",
            hint="run the same command again: it goes on from what is finished",
            code="worker_lost",
        ) from error


def is_loss(error: BaseException | None) -> bool:
    """Whether Ray reports that something was lost, be it from within a task that used Ray."""
    from ray.exceptions import RayError, RayTaskError

    while isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, RayError)


def first_line(error: BaseException) -> str:
    """The first line of an error's text; where it has none, the error's kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unwritable(error: BaseException, where: str) -> ResourceError | None:
    """The `ResourceError` for a full or read-only disk behind an error; None: it's another fault.

    Libraries report it in ways of their own: safetensors and Ray as text only, torch and numpy with
    another error raised while they close the file. So the whole chain is looked through.
    """
    behind: BaseException | None = error
    while behind is not None:
        number = _unwritable_number(behind)
        if number is not None:
            return as_resource_error(OSError(number, os.strerror(number)), where)
        hidden = behind.__suppress_context__
        behind = behind.__cause__ or (None if hidden else behind.__context__)
    return None


def _unwritable_number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _UNWRITABLE else None
    text = str(error)
    return next((number for number in _UNWRITABLE if os.strerror(number) in text), None)


def as_resource_error(error: OSError, where: str) -> ResourceError:
    """The `ResourceError` for an `OSError`: what failed at `where`, and what to do about it."""
    reason = error.strerror or str(error) or type(error).__name__
    code, rule, hint = "storage_failed", f"can't be read or written: {reason}", ""
    if error.errno in _FULL_DISK:
        code, rule = "no_space", f"no space left: {reason}"
        hint = (
            "free some space, or choose another workspace (for temporary files another TMPDIR); "
            "the same command goes on from there"
        )
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        code, rule = "no_permission", f"no permission: {reason}"
        hint = "change its rights or choose another path (for a workspace: workspace=PATH)"
    elif isinstance(error, FileNotFoundError):
        code, rule, hint = "file_missing", "there is no such file", "check the path"
    elif isinstance(error, (NotADirectoryError, FileExistsError)):
        code, rule = "not_a_folder", f"a file stands where a folder is needed: {reason}"
        hint = "remove or rename that file, or choose another path"
    return ResourceError(rule, where=where, hint=hint, code=code)
