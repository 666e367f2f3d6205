"""A second run answers from manifests; what changed decides what is computed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox

HEAVY = ("prefect", "ray", "torch", "transformers", "datasets")

LOOK = f"""
import json, sys
from flows.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps({{"code": code, "heavy": [m for m in {HEAVY!r} if m in sys.modules]}}))
"""


def look(sandbox: Sandbox, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the command line and gives its answer, and the heavy modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        capture_output=True,
        text=True,
    )
    answer, _, imported = done.stdout.rstrip().rpartition("\n")
    return json.loads(answer), json.loads(imported)


def actions(answer: dict[str, Any]) -> dict[str, str]:
    return {name: stage["action"] for name, stage in answer["stages"].items()}


ALL = ("prepare", "train", "evaluate", "export")


def test_first_run_computes_every_stage(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, first = finished
    assert actions(first) == dict.fromkeys(ALL, "computed")
    for name in ALL:
        stage = first["stages"][name]
        assert Path(stage["uri"]).is_dir()
        assert stage["metrics"]
    assert set(first) >= {"run_id", "status", "stages"}
    assert (sandbox.workspace / "runs" / f"{first['run_id']}.json").exists()


def test_second_run_reuses_without_heavy_imports(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, first = finished
    second, imported = look(sandbox, "run", str(sandbox.config), "--json")
    assert actions(second) == dict.fromkeys(ALL, "reused")
    assert imported == {"code": 0, "heavy": []}
    for name in ALL:
        assert second["stages"][name]["fingerprint"] == first["stages"][name]["fingerprint"]


def test_plan_says_what_differs_without_heavy_imports(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, _ = finished
    before = sorted(sandbox.workspace.rglob("*"))
    plan, imported = look(
        sandbox, "plan", str(sandbox.config), "train.learning_rate=0.001", "--json"
    )
    assert imported == {"code": 0, "heavy": []}
    assert sorted(sandbox.workspace.rglob("*")) == before
    assert actions(plan) == {
        "prepare": "reuse",
        "train": "compute",
        "evaluate": "compute",
        "export": "compute",
    }
    assert plan["stages"]["train"]["why"] == ["train.learning_rate"]
    assert plan["steps"] == 30
    assert plan["num_parameters"] > 0
    assert plan["worker_bytes"] > plan["num_parameters"]


def test_run_with_another_learning_rate_reuses_the_data(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, first = finished
    changes = ("train.learning_rate=0.001", "train.max_steps=2")
    second = sandbox.run(*changes, options=["--until", "train"])
    assert actions(second) == {"prepare": "reused", "train": "computed"}
    prepared = second["stages"]["prepare"]["fingerprint"]
    assert prepared == first["stages"]["prepare"]["fingerprint"]


def test_data_of_other_versions_is_probed_without_heavy_imports(
    finished: tuple[Sandbox, dict[str, Any]],
) -> None:
    sandbox, _ = finished
    manifest = next(sandbox.workspace.glob("prepare/*/manifest.json"))
    original = manifest.read_bytes()
    try:
        record = json.loads(original)
        record["numerics"][0]["versions"]["tokenizers"] = "0.0.1"
        manifest.write_text(json.dumps(record))
        plan, _ = look(sandbox, "plan", str(sandbox.config), "--json")
        assert plan["stages"]["prepare"]["action"] == "reuse"
        assert plan["stages"]["prepare"]["why"] == ["made under tokenizers 0.0.1, will be probed"]
        again, imported = look(sandbox, "run", str(sandbox.config), "--json")
        assert actions(again) == dict.fromkeys(ALL, "reused")
        assert imported == {"code": 0, "heavy": []}
    finally:
        manifest.write_bytes(original)


def test_execution_fields_change_nothing(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, _ = finished
    answer, _ = look(
        sandbox,
        "run",
        str(sandbox.config),
        "compute.num_workers=1",
        "train.micro_batch_size=4",
        "evaluate.batch_size=2",
        "name=other",
        "--json",
    )
    assert actions(answer) == dict.fromkeys(ALL, "reused")


def test_one_character_of_one_row_is_noticed(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, _ = finished
    original, status = sandbox.data.read_bytes(), sandbox.data.stat()
    try:
        changed = original.replace(b"2", b"3", 1)
        assert len(changed) == len(original)
        sandbox.data.write_bytes(changed)
        os.utime(sandbox.data, ns=(status.st_atime_ns, status.st_mtime_ns))
        plan, _ = look(sandbox, "plan", str(sandbox.config), "--json")
        assert plan["stages"]["prepare"]["action"] == "compute"
        assert any("files" in path for path in plan["stages"]["prepare"]["why"])
    finally:
        sandbox.data.write_bytes(original)


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_damaged_artifact_is_made_anew(
    options: tuple[str, ...], finished: tuple[Sandbox, dict[str, Any]]
) -> None:
    sandbox, first = finished
    # The other case has left an attempt of its own: the manifest says which one counts.
    manifest = next(sandbox.workspace.glob("prepare/*/manifest.json"))
    report = manifest.parent / json.loads(manifest.read_text())["files"]["report.json"]["path"]
    original = report.read_bytes()
    try:
        size_kept = original.replace(b"0", b"1", 1)
        report.write_bytes(size_kept if options else original[:-1])
        done = sandbox.call("run", str(sandbox.config), "--until", "prepare", "--json", *options)
        again = json.loads(done.stdout)
        assert again["stages"]["prepare"]["action"] in ("computed", "resumed")
        same = again["stages"]["prepare"]["fingerprint"]
        assert same == first["stages"]["prepare"]["fingerprint"]
    finally:
        report.write_bytes(original)


def test_runs_and_lineage(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, first = finished
    listed = sandbox.call("runs", "--workspace", str(sandbox.workspace), "--json")
    ids = [record["run_id"] for record in json.loads(listed.stdout)["runs"]]
    assert first["run_id"] in ids
    shown = sandbox.call("runs", first["run_id"], "--workspace", str(sandbox.workspace), "--json")
    record = json.loads(shown.stdout)
    assert record["stages"]["export"]["inputs"] == {
        name: first["stages"][name]["fingerprint"] for name in ("prepare", "train", "evaluate")
    }


def test_predict_by_run_and_by_folder(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, first = finished
    by_run = sandbox.call(
        "predict", first["run_id"], "3 May 2011", "--workspace", str(sandbox.workspace),
        "--max-new-tokens", "8",
    )  # fmt: skip
    assert by_run.returncode == 0, by_run.stderr
    folder = next(sandbox.workspace.glob("export/*/attempts/*/model"))
    by_folder = sandbox.call("predict", str(folder), "3 May 2011", "--max-new-tokens", "8")
    assert by_folder.stdout == by_run.stdout


def test_predict_names_the_nearest_run(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    sandbox, _ = finished
    done = sandbox.call("predict", "tinny", "x", "--workspace", str(sandbox.workspace))
    assert done.returncode == 2
    assert "tiny" in done.stderr


def test_schema_is_json(sandbox: Sandbox) -> None:
    schema = json.loads(sandbox.call("schema").stdout)
    assert schema["additionalProperties"] is False
    assert {"name", "workspace", "model", "data", "train"} <= set(schema["properties"])
