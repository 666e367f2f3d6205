"""Failures of the operating system and of stores, as errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator

from configs.errors import ModelmillError, ResourceError

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def storage_errors(where: str, *, remote: bool = False) -> Generator[None]:
    """Turn what the operating system or a store reports into a `ResourceError` naming `where`.

    Args:
        where: Path or URI that the block works on.
        remote: The block talks to a store. Each store's package has exceptions of its own, not all
            of them `OSError`; with this every one of them counts as a storage failure.
    """
    try:
        yield
    except ModelmillError:
        raise
    except OSError as error:
        raise as_resource_error(error, where) from error
    except Exception as error:
        if not remote:
            raise
        raise ResourceError(
            f"the store failed: {type(error).__name__}: {error}",
            where=where,
            hint="check address, credentials and network, then run the same command again",
            code="storage_failed",
        ) from error


def as_resource_error(error: OSError, where: str) -> ResourceError:
    """The `ResourceError` for an `OSError`: what failed at `where`, and what to do about it."""
    reason = error.strerror or str(error) or type(error).__name__
    code, rule, hint = "storage_failed", f"can't be read or written: {reason}", ""
    if error.errno in _FULL_DISK:
        code, rule = "no_space", f"no space left: {reason}"
        hint = "free some space or choose another workspace; the same command goes on from there"
    elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
        code, rule = "no_permission", f"no permission: {reason}"
        hint = "choose a workspace that you may write to (workspace=PATH), or change its rights"
    elif isinstance(error, FileNotFoundError):
        code, rule, hint = "file_missing", "there is no such file", "check the path"
    elif isinstance(error, (NotADirectoryError, FileExistsError)):
        code, rule = "not_a_folder", f"a file stands where a folder is needed: {reason}"
        hint = "remove or rename that file, or choose another path"
    return ResourceError(rule, where=where, hint=hint, code=code)
