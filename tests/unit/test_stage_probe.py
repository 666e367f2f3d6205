"""What was made under other versions is reused after a probe, and made anew if that fails."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from configs.data import DataConfig, SourceConfig
from configs.experiment import Experiment
from configs.model import ModelConfig
from tasks.artifacts import Artifact, ArtifactStore, OpenArtifact
from tasks.stage import Context, Outcome, Stage, expect, is_proven, materialise
from tasks.storage import Location

INSTALLED = importlib.metadata.version("pytest")


@dataclass(frozen=True)
class Written:
    word: str


@dataclass
class Write(Stage[str, Written]):
    """Writes a word under a version of pytest that it is told, and says what its probe is told."""

    name = "write"
    version = 1
    libraries = ("pytest",)
    made_under: str = INSTALLED
    probe: bool = True
    fails: bool = False
    probed: list[str] = field(default_factory=list)

    def identity(self, spec: str) -> dict[str, Any]:
        return {"word": spec}

    def run(
        self, context: Context, spec: str, inputs: Mapping[str, Artifact], output: OpenArtifact
    ) -> Written:
        if self.fails:
            raise RuntimeError("broken")
        output.add_numerics({"versions": {"pytest": self.made_under}})
        output.write_bytes("word.txt", spec.encode())
        return Written(spec)

    def still_true(self, spec: str, artifact: Artifact) -> bool:
        self.probed.append(artifact.manifest.attempt)
        return self.probe


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    place = str(tmp_path / "ws") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    return ArtifactStore(Location(place))


@pytest.fixture
def context() -> Context:
    data = DataConfig(sources=(SourceConfig(path="rows.jsonl"),))
    return Context(Experiment(name="toy", model=ModelConfig(base="folder"), data=data))


def write(store: ArtifactStore, context: Context, stage: Write) -> Outcome:
    return materialise(stage, "word", {}, store, context)


def test_same_versions_are_not_probed(store: ArtifactStore, context: Context) -> None:
    write(store, context, Write())
    stage = Write(probe=False)
    assert write(store, context, stage).action == "reused" and stage.probed == []
    expected = expect(stage, "word", {}, store)
    assert (expected.action, expected.why) == ("reuse", ())


def test_stage_without_libraries_is_not_probed(store: ArtifactStore, context: Context) -> None:
    class Careless(Write):
        libraries = ()

    write(store, context, Careless(made_under="0.1"))
    stage = Careless(probe=False)
    assert write(store, context, stage).action == "reused" and stage.probed == []


def test_other_versions_are_probed_and_reused(store: ArtifactStore, context: Context) -> None:
    first = write(store, context, Write(made_under="0.1")).artifact
    stage = Write()
    expected = expect(stage, "word", {}, store)
    assert expected.why == ("made under pytest 0.1, will be probed",)
    assert (expected.action, expected.artifact, stage.probed) == ("reuse", first, [])
    assert is_proven(stage, "word", first) and len(stage.probed) == 1
    assert write(store, context, stage).artifact == first


def test_refuted_artifact_is_made_anew(
    store: ArtifactStore, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="modelmill")
    first = write(store, context, Write(made_under="0.1")).artifact
    stage = Write(probe=False)
    outcome = write(store, context, stage)
    assert outcome.action == "computed"
    assert stage.probed == [first.manifest.attempt], "one probe is enough"
    assert first.uri in caplog.text and "made under pytest 0.1" in caplog.text
    kept = outcome.artifact.location.join(
        "attempts", outcome.artifact.manifest.attempt, "replaced-manifest.json"
    )
    assert json.loads(kept.read_bytes())["attempt"] == first.manifest.attempt
    assert first.read_bytes("word.txt") == b"word", "the old files stay for those who read them"
    again = Write(probe=False)
    assert write(store, context, again).artifact == outcome.artifact and again.probed == []


def test_refuted_artifact_stays_refuted_when_the_run_fails(
    store: ArtifactStore, context: Context
) -> None:
    first = write(store, context, Write(made_under="0.1")).artifact
    with pytest.raises(RuntimeError, match="broken"):
        write(store, context, Write(probe=False, fails=True))
    assert store.lookup("write", first.fingerprint) == first
    outcome = write(store, context, Write(probe=False))
    assert outcome.action == "computed" and outcome.artifact != first


def test_another_run_made_it_anew_meanwhile(store: ArtifactStore, context: Context) -> None:
    theirs: list[Outcome] = []

    class Overtaken(Write):
        """Between its look-up and its lease, another run makes the artifact anew."""

        def still_true(self, spec: str, artifact: Artifact) -> bool:
            theirs.append(write(store, context, Write(probe=False)))
            return False

    write(store, context, Write(made_under="0.1"))
    mine = write(store, context, Overtaken())
    assert theirs[0].action == "computed" and mine.action == "reused"
    assert mine.artifact == theirs[0].artifact


def test_artifact_that_does_not_say_its_versions_is_probed(
    store: ArtifactStore, context: Context
) -> None:
    class Silent(Write):
        def run(
            self, context: Context, spec: str, inputs: Mapping[str, Artifact], output: OpenArtifact
        ) -> Written:
            output.add_numerics({"attempt": output.attempt})
            return Written(spec)

    write(store, context, Silent())
    expected = expect(Write(), "word", {}, store)
    assert expected.why == ("made under pytest (unknown version), will be probed",)
