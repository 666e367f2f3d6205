"""Where bytes are kept: one local folder or object-store prefix, and what is done with it.

A local write replaces the file as a whole (`tasks.files`); a remote one is a single PUT. Failures
come out as `ResourceError` with place and remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import io
import os
import posixpath
import secrets
import shutil
import stat
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from configs.errors import ConfigError, ResourceError
from configs.secret import Secret
from tasks.errors import storage_errors
from tasks.files import TEMPORARY, hash_file, replacing

_BLOCK_BYTES = 8 * 2**20
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class Location:
    """A file or folder, local or in an object store. Picklable, usable in any process.

    Attributes:
        uri: Absolute local path, or a URI such as `s3://bucket/prefix` or `memory://name`.
            Relative paths and `file://` are accepted and turned into an absolute path.
        options: Options of the fsspec filesystem; the secrets are revealed only when it is made.
    """

    uri: str
    options: Mapping[str, Secret] = field(default_factory=dict[str, Secret], hash=False)

    def __post_init__(self) -> None:
        uri = self.uri.removeprefix("file://").removeprefix("local://")
        if "://" not in uri:
            try:
                uri = os.path.normpath(Path(uri).expanduser().absolute())
            except RuntimeError as error:
                raise ConfigError(
                    "the path begins with ~ and the name of a user that isn't there",
                    where=uri,
                    hint=f"~/ is your own home; a folder of that name here is ./{uri}",
                    code="unknown_user",
                ) from error
        object.__setattr__(self, "uri", uri if uri == "/" else uri.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Whether this is a path of this machine."""
        return "://" not in self.uri

    @property
    def fs(self) -> Any:
        """The `fsspec.AbstractFileSystem` (fsspec keeps one instance for the same options).

        Raises:
            ConfigError: There is no such kind of storage, or its package isn't installed.
        """
        return self._filesystem_and_path[0]

    @property
    def path(self) -> str:
        """The path inside `fs`."""
        return self.uri if self.is_local else self._filesystem_and_path[1]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.uri)

    @property
    def _filesystem_and_path(self) -> tuple[Any, str]:
        import fsspec

        # Listings change under us (other runs write there), so nothing may answer from a cache.
        options = {} if self.is_local else {"use_listings_cache": False}
        revealed = {name: secret.reveal() for name, secret in self.options.items()}
        protocol = self.uri.partition("://")[0]
        try:
            made: Any = fsspec.url_to_fs(self.uri, **options, **revealed)
        except ValueError as error:
            known: list[str] = fsspec.available_protocols()
            near = difflib.get_close_matches(protocol, known, n=1)
            raise ConfigError(
                f"there is no storage of the kind {protocol}",
                where=self.uri,
                hint=f"did you mean {near[0]}://?" if near else "use a path, s3:// or gs://",
                code="unknown_storage",
            ) from error
        except ImportError as error:
            raise ConfigError(
                f"storage of the kind {protocol} needs a package that isn't installed",
                where=self.uri,
                hint=str(error),
                code="missing_package",
            ) from error
        return made

    def join(self, *parts: str) -> Location:
        """The location below this one; `..` and absolute parts can't leave it.

        Raises:
            ValueError: A part leads outside.
        """
        relative = posixpath.normpath(posixpath.join(*parts))
        if relative.startswith(("/", "..")):
            raise ValueError(f"{relative!r} leads out of {self.uri}")
        return self if relative == "." else Location(f"{self.uri}/{relative}", self.options)

    def exists(self) -> bool:
        """Whether a file or folder is there."""
        with storage_errors(self.uri, remote=not self.is_local):
            return Path(self.path).exists() if self.is_local else bool(self.fs.exists(self.path))

    def size(self) -> int:
        """Length of the file in bytes.

        Raises:
            ResourceError: There is no such file (`file_missing`), or it can't be reached.
        """
        with storage_errors(self.uri, remote=not self.is_local):
            return Path(self.path).stat().st_size if self.is_local else int(self.fs.size(self.path))

    def list(self) -> list[str]:
        """Sorted names of the files and folders below; empty if the folder isn't there."""
        with storage_errors(self.uri, remote=not self.is_local):
            try:
                if not self.is_local:
                    return sorted(self._rows())
                names = (path.name for path in Path(self.path).iterdir())
                return sorted(name for name in names if not name.endswith(TEMPORARY))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def sizes(self) -> dict[str, int]:
        """Name and length in bytes of each file right below, from one listing."""
        if self.is_local:
            found: dict[str, int] = {}
            for name in self.list():
                # A file may go while the folder is read: others work there.
                with storage_errors(self.uri), contextlib.suppress(FileNotFoundError):
                    status = Path(self.path, name).stat()
                    if not stat.S_ISDIR(status.st_mode):
                        found[name] = status.st_size
            return found
        with storage_errors(self.uri, remote=True):
            try:
                rows = self._rows()
            except FileNotFoundError:
                return {}
        return {name: int(row["size"]) for name, row in rows.items() if row["type"] == "file"}

    def _rows(self) -> dict[str, dict[str, Any]]:
        """The store's own listing, by name."""
        below = posixpath.join(self.path, "").lstrip("/")
        rows = {str(row["name"]).strip("/"): row for row in self.fs.ls(self.path, detail=True)}
        # A store may list a folder's own marker among its children, and a file as its own child.
        return {
            full.removeprefix(below): row
            for full, row in rows.items()
            if full.startswith(below) and full != below.rstrip("/")
        }

    def read_bytes(self) -> bytes:
        """The content of the file.

        Raises:
            ResourceError: There is no such file (`file_missing`), or it can't be read.
        """
        with storage_errors(self.uri, remote=not self.is_local):
            return Path(self.path).read_bytes() if self.is_local else self.fs.cat_file(self.path)

    @contextlib.contextmanager
    def open(self) -> Generator[BinaryIO]:
        """The file as a seekable stream with a fast `readline`; a remote one isn't fetched whole.

        Raises:
            ResourceError: It can't be opened, or not be read within the block.
        """
        with storage_errors(self.uri, remote=not self.is_local):
            if self.is_local:
                with Path(self.path).open("rb", buffering=_BUFFER_BYTES) as stream:
                    yield stream
                return
            with self.fs.open(self.path, "rb", block_size=_BLOCK_BYTES) as remote:
                yield io.BufferedReader(remote, _BUFFER_BYTES)

    def read_if_exists(self) -> bytes | None:
        """The content of the file, or None if there is none."""
        with storage_errors(self.uri, remote=not self.is_local):
            try:
                return (
                    Path(self.path).read_bytes() if self.is_local else self.fs.cat_file(self.path)
                )
            except FileNotFoundError:
                return None

    def read_many(self, names: list[str]) -> dict[str, bytes]:
        """Contents of files below, fetched at once where the store can; without absent ones."""
        if self.is_local or not names:
            contents = {name: self.join(name).read_if_exists() for name in names}
            return {name: data for name, data in contents.items() if data is not None}
        with storage_errors(self.uri, remote=True):
            by_path = {self.join(name).path: name for name in names}
            answers: dict[str, Any] = self.fs.cat(list(by_path), on_error="return")
            for answer in answers.values():
                if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                    raise answer
            return {by_path[p]: data for p, data in answers.items() if isinstance(data, bytes)}

    def sha256(self) -> str:
        """The sha256 of the file's content, as hex; a remote file is read for it."""
        if self.is_local:
            return hash_file(Path(self.path))
        with self.open() as stream:
            digest = hashlib.sha256()
            while chunk := stream.read(_BLOCK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()

    def write_bytes(self, data: bytes, *, durable: bool = True) -> None:
        """Put the file there as a whole, over an earlier one.

        Args:
            data: The content.
            durable: Local only: it survives a power cut once this returns.
        """
        with storage_errors(self.uri, remote=not self.is_local):
            if not self.is_local:
                self.fs.pipe_file(self.path, data)
                return
            with replacing(Path(self.path), durable=durable) as temporary:
                temporary.write_bytes(data)

    def create(self, data: bytes) -> bool:
        """Write the file only if there is none, as far as the store can tell; False if there is.

        Local: exact (`O_EXCL`). Remote: exact only where `creates_exclusively` says so.
        """
        with storage_errors(self.uri, remote=not self.is_local):
            try:
                if self.is_local:
                    Path(self.path).parent.mkdir(parents=True, exist_ok=True)
                    with Path(self.path).open("xb") as stream:
                        stream.write(data)
                else:
                    self.fs.pipe_file(self.path, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                # s3fs's form of "precondition failed" from servers that don't say which one.
                if self.is_local or error.errno != errno.EINVAL:
                    raise
                return False
            return True

    def creates_exclusively(self) -> bool:
        """Whether `create` is exact here; in a store, tried on a small file beside this one."""
        if self.is_local:
            return True
        from fsspec import AbstractFileSystem

        # fsspec's fallback looks and then writes: it would pass the trial and yet be no lock.
        # (Asynchronous filesystems have none; what they show as pipe_file is made from their own.)
        if not self.fs.async_impl and type(self.fs).pipe_file is AbstractFileSystem.pipe_file:
            return False
        trial = Location(f"{self.uri}.trial-{secrets.token_hex(8)}", self.options)
        try:
            return trial.create(b"1") and not trial.create(b"2")
        except (ResourceError, TypeError):
            return False
        finally:
            trial.delete()

    def upload(self, local_path: Path) -> None:
        """Put a copy of a local file there as a whole, over an earlier one."""
        with storage_errors(self.uri, remote=not self.is_local):
            if not self.is_local:
                self.fs.put_file(str(local_path), self.path)
                return
            with replacing(Path(self.path), durable=True) as temporary:
                shutil.copyfile(local_path, temporary)

    def download(self, local_path: Path) -> None:
        """Put a copy of this file at a local path as a whole, over an earlier one."""
        with (
            storage_errors(self.uri, remote=not self.is_local),
            replacing(local_path, durable=False) as temporary,
        ):
            if self.is_local:
                shutil.copyfile(self.path, temporary)
            else:
                self.fs.get_file(self.path, str(temporary))

    def delete(self, *, recursive: bool = False) -> None:
        """Remove the file, or with `recursive` the folder; no error if it isn't there."""
        with (
            storage_errors(self.uri, remote=not self.is_local),
            contextlib.suppress(FileNotFoundError),
        ):
            if not self.is_local:
                self.fs.rm(self.path, recursive=recursive)
            elif recursive and Path(self.path).is_dir():
                shutil.rmtree(self.path)
            else:
                Path(self.path).unlink()

    def arrow(self) -> tuple[Any, str]:
        """A pyarrow filesystem and the path in it."""
        import pyarrow.fs as arrow_fs

        if self.is_local:
            return arrow_fs.LocalFileSystem(), self.path
        return arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(self.fs)), self.path
