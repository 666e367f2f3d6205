"""The whole pipeline with sources and workspace in an object store, over s3fs and HTTP."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from s3_server import S3Server, serving
from sandbox import Sandbox, wait_for, write_sandbox

pytest.importorskip("s3fs")

SECRET = "quite-a-secret-6f1c02"
OPTIONS = {"key": "S3_KEY", "secret": "S3_SECRET", "endpoint_url": "S3_URL"}


@dataclass(frozen=True)
class Remote:
    """A sandbox whose data and workspace lie in a store.

    Its first run was killed in training; `first` is what the same command printed then.
    """

    sandbox: Sandbox
    server: S3Server
    first: dict[str, Any]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    # Ray's sockets need a short path.
    ray_folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with serving() as server:
        sandbox = move_to(server, write_sandbox(tmp_path_factory.mktemp("remote")), ray_folder)
        kill_in_training(sandbox, server)
        yield Remote(sandbox, server, sandbox.run())
    shutil.rmtree(ray_folder, ignore_errors=True)


def kill_in_training(sandbox: Sandbox, server: S3Server) -> None:
    """Starts a run and kills its driver once there is a complete checkpoint."""

    def written(name: str) -> bool:
        return any(re.fullmatch(f"bucket/runs/train/.*/{name}", key) for key in server.snapshot())

    driver = sandbox.start()
    try:
        wait_for(lambda: written("complete.json") or driver.poll(), what="a checkpoint")
    finally:
        driver.kill()
        driver.wait()
    assert written("complete.json"), (sandbox.folder / "driver.log").read_text()
    assert not written("manifest.json"), "killed too late"


def move_to(server: S3Server, sandbox: Sandbox, ray_folder: str) -> Sandbox:
    """The sandbox with its data in the store, and credentials by name in its config."""
    server.objects["bucket/rows.jsonl"] = sandbox.data.read_bytes()
    sandbox.data.unlink()
    config = yaml.safe_load(sandbox.config.read_text())
    config["workspace"] = "s3://bucket/runs"
    config["data"]["sources"] = [{"path": "s3://bucket/rows.jsonl"}]
    references = {option: f"${{env:{name}}}" for option, name in OPTIONS.items()}
    config["compute"]["storage_options"] = references
    sandbox.config.write_text(yaml.safe_dump(config))
    variables = {"S3_KEY": "key", "S3_SECRET": SECRET, "S3_URL": server.url}
    return dataclasses.replace(sandbox, variables=variables | {"RAY_TMPDIR": ray_folder})


def actions(result: dict[str, Any]) -> dict[str, str]:
    return {name: stage["action"] for name, stage in result["stages"].items()}


def test_resumed_to_the_same_model_as_on_a_local_disk(
    remote: Remote, finished: tuple[Sandbox, dict[str, Any]]
) -> None:
    local, first = finished
    assert actions(remote.first) == {
        "prepare": "reused",
        "train": "resumed",
        "evaluate": "computed",
        "export": "computed",
    }
    assert remote.first["stages"]["train"]["metrics"]["start"]["source"] == "checkpoint"
    assert remote.sandbox.model_sha256(remote.first) == local.model_sha256(first)
    assert remote.first["stages"]["export"]["uri"].startswith("s3://bucket/runs/export/")
    assert not remote.sandbox.workspace.exists(), "something was written beside the store"


def test_second_run_reuses_and_writes_only_its_record(remote: Remote) -> None:
    before = set(remote.server.snapshot())
    second = remote.sandbox.run()
    assert set(actions(second).values()) == {"reused"}
    written = set(remote.server.snapshot()) - before
    assert written == {f"bucket/runs/runs/{second['run_id']}.json"}


def test_data_of_other_versions_is_probed_in_place(remote: Remote) -> None:
    objects = remote.server.objects
    manifest = next(key for key in objects if re.fullmatch(r".*/prepare/\w+/manifest.json", key))
    record = json.loads(original := objects[manifest])
    record["numerics"][0]["versions"]["tokenizers"] = "0.0.1"
    objects[manifest] = json.dumps(record).encode()
    try:
        assert set(actions(remote.sandbox.run()).values()) == {"reused"}
    finally:
        objects[manifest] = original


def test_predict_and_runs_take_credentials_from_the_usual_variables(remote: Remote) -> None:
    env = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": remote.server.url,
    }
    question = ("3 May 2011", "--max-new-tokens", "8")
    by_name = remote.sandbox.call(
        "predict", "tiny", *question, "--workspace", "s3://bucket/runs", env=env
    )
    assert by_name.returncode == 0, by_name.stderr
    config = next(k for k in remote.server.snapshot() if k.endswith("/model/config.json"))
    folder = f"s3://{config.removesuffix('/config.json')}"
    by_uri = remote.sandbox.call("predict", folder, *question, env=env)
    assert by_uri.returncode == 0, by_uri.stderr
    assert by_uri.stdout.strip() and by_uri.stdout == by_name.stdout
    listed = remote.sandbox.call("runs", "--workspace", "s3://bucket/runs", env=env)
    assert listed.returncode == 0 and remote.first["run_id"] in listed.stdout


def test_plan_without_the_variable_names_it(remote: Remote) -> None:
    config = str(remote.sandbox.config)
    stranger = dataclasses.replace(remote.sandbox, variables={"S3_KEY": "key", "S3_URL": "x"})
    done = stranger.call("plan", config)
    assert done.returncode == 2
    assert "S3_SECRET" in done.stderr and "Traceback" not in done.stderr


def test_missing_source_names_the_nearest_object(remote: Remote) -> None:
    sources = 'data.sources=[{"path": "s3://bucket/row.jsonl"}]'
    done = remote.sandbox.call("plan", str(remote.sandbox.config), sources)
    assert done.returncode == 3
    assert "did you mean s3://bucket/rows.jsonl?" in done.stderr


def test_secret_is_written_nowhere(remote: Remote) -> None:
    secret = SECRET.encode()
    keys = [key for key, body in remote.server.snapshot().items() if secret in body + key.encode()]
    assert keys == []
    shown = remote.sandbox.call("run", str(remote.sandbox.config), "--debug")
    assert shown.returncode == 0 and SECRET not in shown.stdout + shown.stderr
    folders = (remote.sandbox.folder, Path(remote.sandbox.variables["RAY_TMPDIR"]))
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files), "Ray's logs are looked through as well"
    assert [path for path in files if secret in path.read_bytes()] == []
