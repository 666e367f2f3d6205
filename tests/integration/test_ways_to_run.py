"""The same pipeline from the shell, as a script, from Python; what a person sees; how it stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox import Sandbox, training_workers, wait_for

CALL_WITH_OBJECTS = """
import json, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from flows.finetune import finetune

config, folder = sys.argv[1:]
objects = {
    "model": AutoModelForCausalLM.from_pretrained(folder),
    "tokenizer": AutoTokenizer.from_pretrained(folder),
}
for _ in range(2):
    result = finetune(config, ["train.max_steps=2"], until="train", **objects)
    result.raise_for_error()
    print(json.dumps(
        {name: stage.action for name, stage in result.stages.items()}
        | {"files": sorted(p.name for p in result.checkpoint.local_dir("model").iterdir())}
        | {"start": result.metrics["train"]["start"]["source"], "path": result.path}
    ))
"""

CALL_THAT_FAILS = """
import json, sys
from flows.finetune import finetune

result = finetune(sys.argv[1], ["compute.num_workers=64", "train.seed=9"])
print(json.dumps({"status": result.status, "code": result.error.code, "path": result.path}))
"""


def python(sandbox: Sandbox, *arguments: str) -> list[dict[str, Any]]:
    """Runs Python code in the sandbox; gives the JSON lines that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_summary_for_a_person(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, _ = finished
    done = sandbox.call("run", str(sandbox.config))
    assert done.returncode == 0, done.stderr
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert shown["rows"] == "in       300"
    assert shown["dropped"] == "none"
    assert "→" in shown["loss"]
    assert "→" in shown["exact"]
    # The tests' PATH may lack the environment's scripts; then the whole path is shown.
    assert re.search(r"modelmill predict \S+ \"YOUR QUESTION\"", shown["ask"])
    assert "--workspace" not in shown["ask"], "the workspace is ./runs"


def test_flow_as_a_script_does_the_same(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, first = finished
    done = subprocess.run(
        [sys.executable, "-m", "flows.finetune", str(sandbox.config), "--json"],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert {stage["action"] for stage in answer["stages"].values()} == {"reused"}
    assert set(answer["stages"]) == set(first["stages"])


def test_model_and_tokenizer_objects_are_identified_by_their_content(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, _ = finished
    folder = next(sandbox.workspace.glob("export/*/attempts/*/model"))
    first, second = python(sandbox, "-c", CALL_WITH_OBJECTS, str(sandbox.config), str(folder))
    assert (first["prepare"], first["train"]) == ("computed", "computed")
    assert (second["prepare"], second["train"]) == ("reused", "reused")
    assert first["start"] == "base"
    assert "model.safetensors" in first["files"]
    assert second["path"] == first["path"]


def test_failed_stage_comes_back_as_the_results_error(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, _ = finished
    (result,) = python(sandbox, "-c", CALL_THAT_FAILS, str(sandbox.config))
    assert result == {"status": "failed", "code": "too_few_resources", "path": None}


def test_flow_run_is_made_where_a_server_is_named(
    finished: tuple[Sandbox, dict[str, Any]], prefect_api: str
) -> None:
    import httpx

    def runs() -> int:
        answer = httpx.post(f"{prefect_api}/flow_runs/count", json={}, timeout=30)
        return int(answer.json())

    sandbox, _ = finished
    before = runs()
    result = sandbox.run(env={"PREFECT_API_URL": prefect_api})
    assert {stage["action"] for stage in result["stages"].values()} == {"reused"}
    assert runs() == before + 1


def test_a_prepared_row_is_shown_with_its_line(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, result = finished
    lines = sandbox.data.read_text().splitlines()
    for side in ((), ("--held-out",)):
        done = sandbox.call("preview", result["run_id"], "--row", "3", "--json", *side)
        (row,) = json.loads(done.stdout)["rows"]
        file, _, line = row["place"].rpartition(":")
        assert file == str(sandbox.data)
        said = json.loads(lines[int(line) - 1])["messages"][-1]["content"]
        assert (
            "".join(part["text"] for part in row["parts"] if part["trained"]) == f"{said}<|im_end|>"
        )
    gone = sandbox.call("preview", "tiny", "--row", "9999")
    assert gone.returncode == 2
    assert "Traceback" not in gone.stderr and "of 2" in gone.stderr


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("run",), ("run", "x.yaml", "--nope")], ids=" ".join
)
def test_wrong_usage_is_exit_2_without_a_traceback(
    arguments: tuple[str, ...], sandbox: Sandbox
) -> None:
    done = sandbox.call(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage" in done.stderr
    assert not done.stdout

    told = sandbox.call(*arguments, "--json")
    answer = json.loads(told.stdout)
    assert (told.returncode, answer["status"], answer["error"]["code"]) == (2, "failed", "usage")


def test_predict_from_broken_files_says_so(
    finished: tuple[Sandbox, dict[str, Any]], tmp_path: Path
) -> None:
    sandbox, _ = finished
    for name, content in {
        "tokenizer.json": "{}",
        "config.json": "[",
        "model.safetensors": "",
    }.items():
        broken = tmp_path / name / "model"
        shutil.copytree(next(sandbox.workspace.glob("export/*/attempts/*/model")), broken)
        (broken / name).write_text(content)
        done = sandbox.call("predict", str(broken), "3 May 2011")
        assert done.returncode == 4, done.stderr
        assert str(broken) in done.stderr
        assert "Traceback" not in done.stderr


def test_workspace_of_an_unknown_user_is_a_config_error(sandbox: Sandbox) -> None:
    done = sandbox.call("runs", "--workspace", "~nouser/x", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unknown_user"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sent", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_stopped_in_training_leaves_no_worker(
    sent: signal.Signals, code: int, sandbox: Sandbox, own_processes: list[Any]
) -> None:
    driver = sandbox.start("train.max_steps=100000", "--json")
    own_processes.append(driver)
    pattern = "train/*/attempts/*/checkpoints/*/complete.json"
    wait_for(lambda: list(sandbox.workspace.glob(pattern)), what="a checkpoint")
    workers = training_workers(driver.pid)
    assert workers
    # Ray that dies before the driver has stopped using it can take the driver along.
    below = psutil.Process(driver.pid).children(recursive=True)
    assert {os.getpgid(process.pid) for process in below}.isdisjoint({driver.pid})
    # As a terminal, `timeout` and most schedulers do: to the process and its children.
    os.killpg(driver.pid, sent)
    assert driver.wait(timeout=120) == code
    assert not psutil.wait_procs(workers, timeout=0)[1]
    log = (sandbox.folder / "driver.log").read_text()
    assert "Traceback" not in log
    answer = json.loads(log[log.index("\n{\n") :])
    assert answer["error"]["code"] == "stopped"
    assert list(answer["stages"]) == ["prepare"]
    record = json.loads(next(sandbox.workspace.glob("runs/*.json")).read_text())
    assert record["run_id"] == answer["run_id"]
    assert record["status"] == "stopped"
