"""What a stage is, and `materialise`, which makes a stage's artifact or finds it made.

A stage says what decides its result (`identity`) and how it is made (`run`). Looking up, waiting
for another run, resuming and committing are the same for every stage, and done here only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from configs.errors import ModelmillError
from configs.experiment import Experiment
from tasks.artifacts import Artifact, ArtifactStore, Manifest, OpenArtifact
from tasks.errors import unwritable
from tasks.fingerprint import canonical_json, fingerprint
from tasks.lease import acquire

if TYPE_CHECKING:
    from tasks.cluster import Cluster

SpecT = TypeVar("SpecT", contravariant=True)
ResultT = TypeVar("ResultT", covariant=True)


class Progress(Protocol):
    """Where a stage reports how far it is."""

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Say that `done` of `total` (in the stage's own units) is finished."""
        ...


class NoProgress:
    """Progress that nobody looks at."""

    def update(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Do nothing."""


@dataclass
class Context:
    """The execution side of a run: nothing here changes the result.

    Attributes:
        experiment: The whole config.
        progress: Where stages report how far they are.
        stop: Set when the run shall end; waiting loops look at it.
        log: Where stages say what people should read.
        cluster: The run's Ray; None where no stage needs one.
    """

    experiment: Experiment
    progress: Progress = field(default_factory=NoProgress)
    stop: threading.Event = field(default_factory=threading.Event)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("modelmill"))
    cluster: Cluster | None = None


class Stage(ABC, Generic[SpecT, ResultT]):
    """One step of the pipeline.

    Attributes:
        name: Name of the stage, and of its folder in the workspace.
        version: Raised when the meaning of the output changes.
        libraries: Distributions whose versions `run` notes in its numerics, under `versions`. What
            was made under others is reused only if `still_true` says so.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    libraries: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def identity(self, spec: SpecT) -> dict[str, Any]:
        """What decides the result, beside the fingerprints of the inputs, as JSON."""

    @abstractmethod
    def run(
        self,
        context: Context,
        spec: SpecT,
        inputs: Mapping[str, Artifact],
        output: OpenArtifact,
    ) -> ResultT:
        """Make the result: write files to `output`, return a small frozen dataclass of JSON."""

    def still_true(self, spec: SpecT, artifact: Artifact) -> bool:
        """Whether a sample of the artifact would come out the same under the versions of now."""
        return True

    def versions(self) -> dict[str, str]:
        """The installed versions of `libraries`."""
        return {name: importlib.metadata.version(name) for name in self.libraries}


@dataclass(frozen=True)
class Outcome:
    """What `materialise` did.

    Attributes:
        stage: Name of the stage.
        artifact: The finished artifact.
        action: `computed`; `reused` (nothing had to be done, or another run did it); `resumed`
            (computed with work of an earlier attempt).
        seconds: Time it took now.
        result: The stage's result as JSON.
    """

    stage: str
    artifact: Artifact
    action: Literal["computed", "reused", "resumed"]
    seconds: float
    result: dict[str, Any]


@dataclass(frozen=True)
class Expectation:
    """What `materialise` would do.

    Attributes:
        stage: Name of the stage.
        fingerprint: Fingerprint of its result.
        identity: What decides the result.
        action: What would be done.
        why: For `compute` the dotted paths that differ from the nearest artifact there is, for
            `resume` the reason, for `reuse` the other versions for which it will be probed.
        artifact: The artifact that would be reused.
    """

    stage: str
    fingerprint: str
    identity: dict[str, Any]
    action: Literal["compute", "reuse", "resume"]
    why: tuple[str, ...]
    artifact: Artifact | None = None


def expect(
    stage: Stage[SpecT, ResultT],
    spec: SpecT,
    inputs: Mapping[str, str],
    store: ArtifactStore,
) -> Expectation:
    """Say what `materialise` would do, and touch nothing.

    Args:
        stage: The stage.
        spec: Its part of the experiment.
        inputs: Fingerprint of each input artifact, by name; they need not be there yet.
        store: Where artifacts are kept.
    """
    identity = stage.identity(spec)
    name = fingerprint(stage.name, stage.version, identity, inputs)
    found = store.lookup(stage.name, name)
    if found is not None:
        others = _other_versions(stage, found)
        why = (f"made under {others}, will be probed",) if others else ()
        return Expectation(stage.name, name, identity, "reuse", why, found)
    if store.is_committed(stage.name, name):
        why = "files of the artifact are missing or changed"
        return Expectation(stage.name, name, identity, "resume", (why,))
    if store.has_attempts(stage.name, name):
        return Expectation(stage.name, name, identity, "resume", ("an attempt was cut off",))
    nearest = store.nearest(stage.name, identity, inputs)
    if nearest is None:
        return Expectation(stage.name, name, identity, "compute", ("nothing there yet",))
    manifest, paths = nearest
    changed = () if manifest.stage_version == stage.version else ("stage_version",)
    return Expectation(stage.name, name, identity, "compute", (*changed, *paths))


def is_proven(stage: Stage[SpecT, ResultT], spec: SpecT, artifact: Artifact) -> bool:
    """Whether an artifact made under other versions of the stage's libraries passes its probe.

    Raises:
        ModelmillError: The probe can't be made.
    """
    return not _other_versions(stage, artifact) or stage.still_true(spec, artifact)


def materialise(
    stage: Stage[SpecT, ResultT],
    spec: SpecT,
    inputs: Mapping[str, Artifact],
    store: ArtifactStore,
    context: Context,
) -> Outcome:
    """Make a stage's artifact unless it is there: look up, wait, resume, run, commit.

    If another run works on the same artifact, this one waits and reuses what it makes.

    Raises:
        ModelmillError: The run was stopped while waiting (`stopped`), or what the stage raises.
        ResourceError: The workspace can't be read or written.
    """
    started = time.monotonic()
    identity = stage.identity(spec)
    lineage = {name: artifact.fingerprint for name, artifact in inputs.items()}
    name = fingerprint(stage.name, stage.version, identity, lineage)

    def outcome(artifact: Artifact, action: Literal["computed", "reused", "resumed"]) -> Outcome:
        seconds = time.monotonic() - started
        return Outcome(stage.name, artifact, action, seconds, artifact.result)

    found, refuted = _look_up(stage, spec, store, name, context.log)
    if found is not None:
        return outcome(found, "reused")
    root = store.root(stage.name, name)
    with acquire(
        root.join("lease.json"), stop=context.stop, log=context.log, timing=store.lease_timing
    ):
        # Another run may have committed between the look-up and the lease.
        found, refuted = _look_up(stage, spec, store, name, context.log, refuted)
        if found is not None:
            return outcome(found, "reused")
        output = store.open(stage.name, name)
        began = time.monotonic()
        with _full_disk(root.uri):
            result = stage.run(context, spec, inputs, output)
        manifest = Manifest(
            stage=stage.name,
            stage_version=stage.version,
            fingerprint=name,
            identity=_as_json(identity),
            inputs=lineage,
            files=dict(sorted(output.files.items())),
            result=_result_json(result),
            numerics=output.numerics,
            attempt=output.attempt,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(),
            seconds=round(time.monotonic() - began, 3),
        )
        artifact = store.commit(output, manifest, refuted=refuted)
    if artifact.manifest.attempt != output.attempt:
        return outcome(artifact, "reused")
    return outcome(artifact, "resumed" if output.resumed else "computed")


def _look_up(
    stage: Stage[SpecT, ResultT],
    spec: SpecT,
    store: ArtifactStore,
    name: str,
    log: logging.Logger,
    refuted: Artifact | None = None,
) -> tuple[Artifact | None, Artifact | None]:
    """The artifact if it is there and true, and the one that its probe has refuted."""
    found = store.lookup(stage.name, name)
    if found is None or found == refuted:
        return None, refuted
    if is_proven(stage, spec, found):
        return found, None
    log.warning(
        "%s: made under %s, and a sample comes out otherwise now; the artifact counts as absent",
        found.uri,
        _other_versions(stage, found),
    )
    return None, found


def _other_versions(stage: Stage[Any, Any], artifact: Artifact) -> str:
    """The versions that an artifact was made under and that aren't installed now, for people."""
    installed = stage.versions()
    others = {
        f"{library} {record.get('versions', {}).get(library, '(unknown version)')}"
        for record in artifact.manifest.numerics
        for library, version in installed.items()
        if record.get("versions", {}).get(library) != version
    }
    return ", ".join(sorted(others))


@contextlib.contextmanager
def _full_disk(where: str) -> Generator[None]:
    """A full or read-only disk is the machine's fault, also where a stage writes without us."""
    try:
        yield
    except ModelmillError:
        raise
    except Exception as error:
        name = error.filename if isinstance(error, OSError) else None
        found = unwritable(error, name or where)
        if found is None:
            raise
        raise found from error


def _result_json(result: Any) -> dict[str, Any]:
    assert dataclasses.is_dataclass(result) and not isinstance(result, type), result
    return _as_json(dataclasses.asdict(result))


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    return json.loads(canonical_json(value))
