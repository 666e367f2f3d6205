"""On a real Prefect server: what is tried again, what isn't, and what needs no resources."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import httpx
import pytest
import yaml
from s3_server import S3Handler, serving
from sandbox import Sandbox, wait_for


def task_runs(api: str, **where: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{api}/task_runs/filter", json=where, timeout=30)
    answer.raise_for_status()
    return answer.json()


def flow_runs(api: str) -> list[dict[str, Any]]:
    """The server's flow runs, the newest first."""
    body = {"sort": "START_TIME_DESC"}
    return httpx.post(f"{api}/flow_runs/filter", json=body, timeout=30).json()


def tasks_of(api: str, flow_run: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, state and number of attempts of each task of a flow run."""
    found = task_runs(api, flow_runs={"id": {"any_": [flow_run["id"]]}})
    return [(one["name"].split("-")[0], one["state"]["type"], one["run_count"]) for one in found]


def test_storage_that_fails_for_a_while_is_tried_again(
    sandbox: Sandbox, prefect_api: str, own_processes: list[Any]
) -> None:
    pytest.importorskip("s3fs")
    failing = threading.Event()

    class FailingHandler(S3Handler):
        def parse_request(self) -> bool:
            understood = super().parse_request()
            if understood and failing.is_set():
                self.body()
                self.refuse(503, "ServiceUnavailable")
                return False
            return understood

    with serving() as server:
        server.RequestHandlerClass = FailingHandler
        remote = with_workspace_in(server.url, sandbox, prefect_api)
        failing.set()
        driver = remote.start("--until", "prepare")
        own_processes.append(driver)
        waiting = {"task_runs": {"state": {"name": {"any_": ["AwaitingRetry"]}}}}
        wait_for(
            lambda: driver.poll() is not None or task_runs(prefect_api, **waiting),
            what="the task to wait for its second attempt",
        )
        failing.clear()
        assert driver.wait(timeout=300) == 0, (remote.folder / "driver.log").read_text()
        assert any(key.endswith("/manifest.json") for key in server.snapshot())

    flow_run = flow_runs(prefect_api)[0]
    assert flow_run["state"]["type"] == "COMPLETED"
    assert tasks_of(prefect_api, flow_run) == [("prepare", "COMPLETED", 2)]


def with_workspace_in(url: str, sandbox: Sandbox, prefect_api: str) -> Sandbox:
    config = yaml.safe_load(sandbox.config.read_text())
    config["workspace"] = "s3://bucket/runs"
    sandbox.config.write_text(yaml.safe_dump(config))
    variables = {
        "PREFECT_API_URL": prefect_api,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_MAX_ATTEMPTS": "1",
    }
    return dataclasses.replace(sandbox, variables=variables)


def test_bad_data_is_not_tried_again(sandbox: Sandbox, prefect_api: str) -> None:
    sandbox.data.write_text('{"messages": []}\n' * 50)
    env = {"PREFECT_API_URL": prefect_api}
    done = sandbox.call("run", str(sandbox.config), "--until", "prepare", env=env)
    assert done.returncode == 3, done.stderr
    flow_run = flow_runs(prefect_api)[0]
    assert flow_run["state"]["type"] == "FAILED"
    assert tasks_of(prefect_api, flow_run) == [("prepare", "FAILED", 1)]


@pytest.mark.parametrize("on_server", [False, True], ids=["alone", "on_a_server"])
def test_what_is_there_already_needs_no_resources(
    on_server: bool, finished: tuple[Sandbox, dict[str, Any]], prefect_api: str
) -> None:
    sandbox, _ = finished
    env = {"PREFECT_API_URL": prefect_api} if on_server else {}
    result = sandbox.run("compute.num_workers=64", env=env)
    assert {stage["action"] for stage in result["stages"].values()} == {"reused"}


def test_training_that_cannot_be_placed_is_refused_before_prepare(
    sandbox: Sandbox, prefect_api: str
) -> None:
    env = {"PREFECT_API_URL": prefect_api}
    overrides = (str(sandbox.config), "compute.num_workers=64")
    done = sandbox.call("run", *overrides, env=env)
    assert done.returncode == 4 and "num_workers=2 fits" in done.stderr
    assert not (sandbox.workspace / "prepare").exists()
    assert tasks_of(prefect_api, flow_runs(prefect_api)[0]) == [("prepare", "FAILED", 1)]
