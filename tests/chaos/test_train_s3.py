"""Training with its workspace in an object store: the bytes of a local one, also after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from s3_server import S3Server, serving
from tiny_training import (
    LONG,
    OnStep,
    kill_a_worker,
    model_sha256,
    start_ray,
    train,
    write_prepared,
)
from tiny_training import experiment as tiny

from configs.secret import Secret
from tasks.storage import Location

ACCESS = {"key": "k", "secret": "s"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with serving() as server:
        for name, value in {**ACCESS, "endpoint_url": server.url}.items():
            monkeypatch.setenv(f"STORE_{name.upper()}", value)
        yield server


@pytest.fixture
def private_ray(server: S3Server) -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


@pytest.mark.usefixtures("private_ray")
def test_lost_worker_resumes_from_the_store(server: S3Server, tmp_path: Path) -> None:
    options = {name: f"${{env:STORE_{name.upper()}}}" for name in ("key", "secret", "endpoint_url")}
    secrets = {name: Secret(reference) for name, reference in options.items()}
    uri = "s3://bucket/workspace"
    local = tiny(tmp_path / "local", compute={"num_workers": 2}, **LONG)
    remote = tiny(uri, compute={"num_workers": 2, "storage_options": options}, **LONG)
    undisturbed = train(local, write_prepared(tmp_path / "local", tmp_path / "data"))
    disturbance = OnStep(30, kill_a_worker)

    disturbed = train(remote, write_prepared(Location(uri, secrets), tmp_path / "b"), disturbance)

    assert disturbance.done
    assert model_sha256(disturbed) == model_sha256(undisturbed)
    weights: Any = disturbed.artifact.local("model/model.safetensors")
    assert weights.stat().st_size > 0
    markers = [key for key in server.snapshot() if key.endswith("complete.json")]
    assert len(markers) == 2, "not the two newest checkpoints"
