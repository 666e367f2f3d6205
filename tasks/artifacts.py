"""Finished artifacts and the store that keeps them.

    <workspace>/<stage>/<fingerprint>/manifest.json         written last: makes the artifact true
    <workspace>/<stage>/<fingerprint>/attempts/<attempt>/   the files, of each attempt apart
    <workspace>/<stage>/<fingerprint>/lease.json            who works on it at the moment

No manifest, or one cut short: the artifact isn't there. One whose files are damaged (missing, of
another size; with `verify_hashes` also of other content) counts as not there either, with a
warning: the stage makes anew what is damaged, and its commit sets the untrue manifest aside.
"""

from __future__ import annotations

import dataclasses
import logging
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import ResourceError
from tasks.attempt import ATTEMPTS, FileCheck, OpenArtifact, UnitRecord, damaged, new_attempt
from tasks.files import hash_bytes
from tasks.fingerprint import diff
from tasks.lease import LeaseTiming
from tasks.manifest import MAX_FILES_INLINE, Manifest, pack_file_list, unpack_file_list
from tasks.node_cache import assemble, fetch
from tasks.storage import Location

__all__ = ["Artifact", "ArtifactStore", "Manifest", "OpenArtifact", "UnitRecord"]

_MANIFEST = "manifest.json"
_log = logging.getLogger("modelmill")


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: its manifest and where its files are. Picklable.

    Attributes:
        location: Root of the artifact.
        manifest: What its manifest says, files included.
    """

    location: Location
    manifest: Manifest

    @property
    def uri(self) -> str:
        """Path or URI of the artifact's root."""
        return self.location.uri

    @property
    def fingerprint(self) -> str:
        """The artifact's fingerprint."""
        return self.manifest.fingerprint

    @property
    def result(self) -> dict[str, Any]:
        """The stage's result as JSON."""
        return self.manifest.result

    def names(self, prefix: str = "") -> list[str]:
        """Sorted logical names of the files that begin with `prefix`."""
        return sorted(name for name in self.manifest.files if name.startswith(prefix))

    def local(self, name: str) -> Path:
        """Local path of a file; a remote one is fetched once per node. Not to be written to.

        Raises:
            KeyError: The artifact has no such file.
            ResourceError: It can't be fetched, or its content isn't what was written.
        """
        entry = self.manifest.files[name]
        source = self.location.join(entry.path)
        return Path(source.path) if source.is_local else fetch(source, entry)

    def local_dir(self, prefix: str) -> Path:
        """A local folder with exactly the files under `prefix/`, named by what follows it.

        Raises:
            KeyError: The artifact has no file there.
            ResourceError: A file can't be fetched, or its content isn't what was written.
        """
        names = {name[len(prefix) + 1 :]: name for name in self.names(f"{prefix}/")}
        if not names:
            raise KeyError(prefix)
        paths = {below: self.local(name) for below, name in names.items()}
        return _folder_of(paths) or assemble(
            {below: (paths[below], self.manifest.files[name]) for below, name in names.items()}
        )

    def read_bytes(self, name: str) -> bytes:
        """Content of a file.

        Raises:
            KeyError: The artifact has no such file.
            ResourceError: It can't be read.
        """
        return self.location.join(self.manifest.files[name].path).read_bytes()

    def verify(self, *, hashes: bool = False) -> None:
        """Compare the files with the manifest: by size, from one listing of each folder.

        Args:
            hashes: Also read every file and compare its sha256.

        Raises:
            ResourceError: A file is missing or changed (`artifact_damaged`).
        """
        fault = FileCheck(self.location, hashes=hashes).first_fault(self.manifest.files.values())
        if fault is not None:
            raise fault


@dataclass(frozen=True)
class ArtifactStore:
    """The artifacts of a workspace.

    Attributes:
        workspace: Folder or prefix that they lie in.
        verify_hashes: Read every file of an artifact before it counts as there.
        lease_timing: How long a run waits for another one that works on the same artifact.
    """

    workspace: Location
    verify_hashes: bool = False
    lease_timing: LeaseTiming = field(default_factory=LeaseTiming)

    def root(self, stage: str, fingerprint: str) -> Location:
        """Where an artifact lies or would lie."""
        return self.workspace.join(stage, fingerprint)

    def lookup(self, stage: str, fingerprint: str) -> Artifact | None:
        """The artifact if it is there, whole and undamaged.

        Raises:
            ResourceError: The workspace can't be read, or a newer modelmill wrote the manifest.
        """
        root = self.root(stage, fingerprint)
        data = root.join(_MANIFEST).read_if_exists()
        if data is None:
            return None
        try:
            artifact = Artifact(root, _with_files(root, _parse(root, data)))
            artifact.verify(hashes=self.verify_hashes)
        except ValueError:
            _log.warning("%s: the manifest is cut short; the artifact counts as absent", root.uri)
            return None
        except ResourceError as error:
            if error.code != "artifact_damaged":
                raise
            _log.warning("%s: %s; the artifact counts as absent", error.where, error.rule)
            return None
        return artifact

    def is_committed(self, stage: str, fingerprint: str) -> bool:
        """Whether there is a manifest, without a look at it or at the files."""
        return self.root(stage, fingerprint).join(_MANIFEST).exists()

    def list(self, stage: str) -> list[Manifest]:
        """Manifests of a stage's artifacts, oldest first.

        Damaged files aren't looked for, and `files` is empty where they stand in a file list.
        """
        folder = self.workspace.join(stage)
        found: list[Manifest] = []
        contents = folder.read_many([f"{name}/{_MANIFEST}" for name in folder.list()])
        for name, data in contents.items():
            root = folder.join(posixpath.dirname(name))
            try:
                found.append(_parse(root, data))
            except ValueError:
                continue
        return sorted(found, key=lambda manifest: (manifest.created_at, manifest.fingerprint))

    def nearest(
        self, stage: str, identity: Mapping[str, Any], inputs: Mapping[str, str] | None = None
    ) -> tuple[Manifest, list[str]] | None:
        """The artifact whose identity differs least, the newest of equals.

        Args:
            stage: Name of the stage.
            identity: The identity looked for.
            inputs: Also count inputs with another fingerprint, as `inputs.<name>`.

        Returns:
            Its manifest and the dotted paths that differ; None if the stage has no artifact.
        """
        best: tuple[Manifest, list[str]] | None = None
        for manifest in self.list(stage):
            paths = diff(manifest.identity, identity)
            if inputs is not None:
                paths += diff({"inputs": manifest.inputs}, {"inputs": inputs})
            if best is None or len(paths) <= len(best[1]):
                best = manifest, paths
        return best

    def has_attempts(self, stage: str, fingerprint: str) -> bool:
        """Whether a run has begun this artifact."""
        return bool(self.root(stage, fingerprint).join(ATTEMPTS).list())

    def open(self, stage: str, fingerprint: str) -> OpenArtifact:
        """Begin a new attempt at an artifact."""
        return new_attempt(self.root(stage, fingerprint), verify_hashes=self.verify_hashes)

    def commit(
        self, output: OpenArtifact, manifest: Manifest, *, refuted: Artifact | None = None
    ) -> Artifact:
        """Make an attempt the artifact by writing its manifest.

        If another run has committed meanwhile, its artifact stays and is returned. A manifest that
        is there but untrue (damaged files, or refuted) is kept in this attempt's folder and then
        replaced.

        Args:
            output: The attempt.
            manifest: What to write.
            refuted: An artifact that isn't true although it is whole.

        Raises:
            ResourceError: The manifest, or a file that it names, can't be written or isn't there.
        """
        theirs = self.lookup(manifest.stage, manifest.fingerprint)
        if theirs is not None and theirs != refuted:
            return theirs
        artifact = Artifact(output.root, manifest)
        artifact.verify()
        if len(manifest.files) > MAX_FILES_INLINE:
            data = pack_file_list(manifest.files)
            entry = output.write_bytes("files.json.gz", data, unit=True)
            manifest = dataclasses.replace(manifest, file_list=entry)
        target = output.root.join(_MANIFEST)
        untrue = target.read_if_exists()
        if untrue is not None:
            output.location.join("replaced-manifest.json").write_bytes(untrue)
        target.write_bytes(manifest.to_json())
        return Artifact(output.root, manifest)


def _parse(root: Location, data: bytes) -> Manifest:
    manifest = Manifest.from_json(data, where=root.join(_MANIFEST).uri)
    if manifest.fingerprint != root.name:
        raise ValueError("the manifest belongs to another artifact")
    return manifest


def _with_files(root: Location, manifest: Manifest) -> Manifest:
    """The manifest with the files of its file list read in."""
    if manifest.file_list is None:
        return manifest
    where = root.join(manifest.file_list.path)
    data = where.read_if_exists()
    if data is None or hash_bytes(data) != manifest.file_list.sha256:
        raise damaged(where, "the list of files is missing or isn't what was written")
    return dataclasses.replace(manifest, files=unpack_file_list(data))


def _folder_of(paths: Mapping[str, Path]) -> Path | None:
    """The folder in which the files already lie under these names, with nothing beside them."""
    below, path = next(iter(paths.items()))
    if not path.as_posix().endswith(f"/{below}"):
        return None
    folder = path.parents[below.count("/")]
    if any(folder / name != path for name, path in paths.items()):
        return None
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return folder if there == set(paths) else None
