"""A real Prefect server and process worker: deployments, an event, and a cancelled run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sandbox import PREFECT, ROOT, Sandbox, end, wait_for, write_sandbox


@dataclasses.dataclass(frozen=True)
class Server:
    """A Prefect server with the project's deployments and a worker."""

    sandbox: Sandbox
    api: str

    def environment(self) -> dict[str, str]:
        return self.sandbox.environment(
            PREFECT_API_URL=self.api,
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            PREFECT_WORKER_QUERY_SECONDS="2",
            MODELMILL_HOME=str(ROOT),
        )

    def call(self, *command: str, timeout: float = 300) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        out = (self.sandbox.folder / log).open("wb")
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def filter(self, kind: str, **body: Any) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.api}/{kind}/filter", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        named = {"deployments": {"name": {"any_": [deployment]}}}
        return self.filter("flow_runs", sort="START_TIME_DESC", **named)

    def run(self, deployment: str, **parameters: Any) -> str:
        """`prefect deployment run`; gives the flow run's id."""
        said = self.call(
            PREFECT,
            "deployment",
            "run",
            f"finetune/{deployment}",
            "--params",
            json.dumps(parameters),
        )
        found = re.search(r"UUID: ([0-9a-f-]{36})", said)
        assert found, said
        return found.group(1)

    def state(self, flow_run_id: str) -> str:
        answer = httpx.get(f"{self.api}/flow_runs/{flow_run_id}", timeout=30)
        answer.raise_for_status()
        return answer.json()["state"]["type"]

    def wait_until(self, flow_run_id: str, state: str, *, seconds: float = 300) -> None:
        final = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

        def there() -> bool:
            now = self.state(flow_run_id)
            assert now == state or now not in final, f"{now}: {self.worker_log()}"
            return now == state

        wait_for(there, seconds=seconds, what=f"state {state}")

    def worker_log(self) -> str:
        return (self.sandbox.folder / "worker.log").read_text()[-4000:]


@pytest.fixture(scope="module")
def server(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(write_sandbox(tmp_path_factory.mktemp("server")), prefect_api)
    deploy(server)
    worker = server.start(
        PREFECT, "worker", "start", "--pool", "modelmill", "--name", "test", log="worker.log"
    )
    yield server
    end(worker)


def deploy(server: Server) -> None:
    server.call("make", "-o", ".venv/.runtime", "deploy")


def test_deploying_twice_doubles_nothing(server: Server) -> None:
    deploy(server)
    deployments = server.filter("deployments")
    assert sorted(one["name"] for one in deployments) == ["nightly", "on-demand", "on-new-data"]
    assert [len(one["schedules"]) for one in sorted(deployments, key=name_of)] == [1, 0, 0]
    nightly = next(one for one in deployments if one["name"] == "nightly")
    assert nightly["schedules"][0]["schedule"]["timezone"] == "Europe/Berlin"
    assert {one["global_concurrency_limit"]["limit"] for one in deployments} == {1}
    assert len(server.filter("automations")) == 1


def name_of(deployment: dict[str, Any]) -> str:
    return deployment["name"]


def test_on_demand_then_event_reuses_everything(server: Server) -> None:
    config = str(server.sandbox.config)
    first = server.run("on-demand", config=config)
    server.wait_until(first, "COMPLETED")
    keys = {artifact["key"] for artifact in server.filter("artifacts")}
    assert {"data-report", "scores"} <= keys

    done = server.sandbox.call(
        "emit", "data.changed", config, "train.logging_steps=2", env=server.environment()
    )
    assert done.returncode == 0, done.stderr
    runs = wait_for(lambda: server.flow_runs("on-new-data"), seconds=60, what="the event's run")
    assert len(runs) == 1
    assert runs[0]["parameters"]["overrides"] == ["train.logging_steps=2"]
    server.wait_until(runs[0]["id"], "COMPLETED")

    records = {
        record["flow_run_id"]: record
        for record in map(read_json, server.sandbox.workspace.glob("runs/*.json"))
    }
    assert actions(records[first]) == {"computed"}
    assert actions(records[runs[0]["id"]]) == {"reused"}


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def actions(record: dict[str, Any]) -> set[str]:
    return {stage["action"] for stage in record["stages"].values()}


@pytest.mark.slow
def test_cancelled_in_training_then_resumed(server: Server) -> None:
    parameters = {
        "config": str(server.sandbox.config),
        "overrides": ["train.max_steps=300", "train.seed=5"],
    }
    cancelled = server.run("on-demand", **parameters)
    pattern = "train/*/attempts/*/checkpoints/*/complete.json"
    before = set(server.sandbox.workspace.glob(pattern))
    wait_for(lambda: set(server.sandbox.workspace.glob(pattern)) - before, what="a new checkpoint")
    server.call(PREFECT, "flow-run", "cancel", cancelled)
    asked = time.monotonic()
    wait_for(lambda: not training_workers(server), seconds=30, what="the workers to go")
    print(f"workers gone after {time.monotonic() - asked:.1f} s")
    server.wait_until(cancelled, "CANCELLED", seconds=60)
    history = httpx.get(f"{server.api}/flow_run_states/", params={"flow_run_id": cancelled}).json()
    assert "CRASHED" not in [state["type"] for state in history]

    again = server.run("on-demand", **parameters)
    server.wait_until(again, "COMPLETED")
    records = map(read_json, server.sandbox.workspace.glob("runs/*.json"))
    resumed = next(record for record in records if record["flow_run_id"] == again)
    assert resumed["stages"]["prepare"]["action"] == "reused"
    assert resumed["stages"]["train"]["action"] == "resumed"


def training_workers(server: Server) -> list[psutil.Process]:
    """Training workers that belong to this server's sandbox."""
    cache = str(server.sandbox.folder / "cache")
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            ours = process.environ().get("MODELMILL_CACHE_DIR") == cache
            if ours and "RayTrainWorker" in " ".join(process.cmdline()):
                found.append(process)
    return found
