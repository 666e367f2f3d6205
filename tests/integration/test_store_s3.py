"""The store over s3fs and HTTP, against a small S3 server with and without conditional writes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server, serving

from configs.data import DataConfig, SourceConfig
from configs.errors import ResourceError
from configs.experiment import Experiment
from configs.model import ModelConfig
from configs.secret import Secret
from tasks.artifacts import Artifact, ArtifactStore, OpenArtifact
from tasks.files import hash_bytes
from tasks.hashcache import content_identity
from tasks.lease import LeaseTiming
from tasks.stage import Context, Outcome, Stage, materialise
from tasks.storage import Location

pytest.importorskip("s3fs")

QUICK = LeaseTiming(
    heartbeat_seconds=0.2, stale_seconds=10.0, poll_seconds=0.05, settle_seconds=0.5
)


@pytest.fixture(params=["conditional", "conditional without a name", "unconditional"])
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    named = "<Condition>If-None-Match</Condition>" if request.param == "conditional" else ""
    conditional = request.param != "unconditional"
    with serving(conditional=conditional, condition=named) as server:
        yield server


@pytest.fixture
def folder(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    options = {"key": "key", "secret": "secret"}
    options["endpoint_url"] = server.url
    for name, value in options.items():
        monkeypatch.setenv(f"STORE_{name.upper()}", value)
    secrets = {name: Secret(f"${{env:STORE_{name.upper()}}}") for name in options}
    return Location("s3://bucket/workspace", secrets)


@dataclass(frozen=True)
class Made:
    units: int


@dataclass
class Units(Stage[int, Made]):
    """Makes `spec` units; `fails` breaks it after the last one."""

    name = "units"
    version = 1
    fails: bool = False
    made: int = 0

    def identity(self, spec: int) -> dict[str, Any]:
        return {"units": spec}

    def run(
        self, context: Context, spec: int, inputs: Mapping[str, Artifact], output: OpenArtifact
    ) -> Made:
        finished = output.finished_units()
        if finished:
            output.mark_resumed()
        for unit in map(str, range(spec)):
            if unit not in finished:
                self.made += 1
                files = {f"out/{unit}.txt": output.write_bytes("u.txt", unit.encode(), unit=True)}
                output.record_unit(unit, files, {})
            output.add_files(output.finished_units()[unit].files)
        if self.fails:
            raise RuntimeError("broken")
        return Made(spec)


@pytest.fixture
def context() -> Context:
    data = DataConfig(sources=(SourceConfig(path="rows.jsonl"),))
    return Context(Experiment(name="toy", model=ModelConfig(base="folder"), data=data))


def test_location_over_s3(folder: Location, server: S3Server) -> None:
    file = folder.join("a", "b.bin")
    assert not file.exists() and file.read_if_exists() is None and folder.list() == []
    file.write_bytes(b"one")
    file.write_bytes(b"other")
    folder.join("c.bin").write_bytes(b"")
    assert (file.read_bytes(), file.size(), file.exists()) == (b"other", 5, True)
    assert file.sha256() == hash_bytes(b"other")
    assert folder.list() == ["a", "c.bin"] and folder.sizes() == {"c.bin": 0}
    assert folder.read_many(["a/b.bin", "absent"]) == {"a/b.bin": b"other"}
    assert content_identity(file.uri, folder.options)["etag"] == hashlib.md5(b"other").hexdigest()
    filesystem, path = file.arrow()
    assert filesystem.get_file_info(path).size == 5
    # Other writers are seen at once: nothing is answered from a cache of listings.
    server.objects["bucket/workspace/d.bin"] = b"1"
    assert folder.list() == ["a", "c.bin", "d.bin"]
    folder.delete(recursive=True)
    assert folder.list() == [] and server.objects == {}


def test_conditional_writes_are_found_by_trying(folder: Location, server: S3Server) -> None:
    assert folder.join("lease").creates_exclusively() is server.conditional
    assert server.objects == {}


def test_failed_run_is_resumed_and_then_reused(folder: Location, context: Context) -> None:
    store = ArtifactStore(folder, lease_timing=QUICK)
    with pytest.raises(RuntimeError, match="broken"):
        materialise(Units(fails=True), 3, {}, store, context)
    again = Units()
    outcome = materialise(again, 3, {}, store, context)
    assert outcome.action == "resumed" and again.made == 0
    local = outcome.artifact.local_dir("out")
    assert {p.name: p.read_text() for p in local.iterdir()} == {
        "0.txt": "0",
        "1.txt": "1",
        "2.txt": "2",
    }
    assert materialise(Units(), 3, {}, store, context).action == "reused"
    assert outcome.artifact.location.list() == ["attempts", "manifest.json"]


def test_of_two_runs_at_once_one_computes(folder: Location, context: Context) -> None:
    store = ArtifactStore(folder, lease_timing=QUICK)
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(
            target=lambda: outcomes.append(materialise(Units(), 2, {}, store, context))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(outcome.action for outcome in outcomes) == ["computed", "reused"]


def test_store_that_cannot_be_reached_is_named(
    folder: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ResourceError) as caught:
        folder.list()
    assert caught.value.code == "storage_failed" and caught.value.where == folder.uri
    assert "credentials" in caught.value.hint
