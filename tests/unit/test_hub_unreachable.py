"""A hub that can't be reached: the command ends with what to do instead, not with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def run_offline(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in an empty folder, with a hub at a port where nobody listens."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "HF_HOME": str(tmp_path / "hub"),
        "MODELMILL_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("preset", "overrides", "where"),
    [
        ("smollm2-sql", [], "model.base"),
        (
            "quickstart",
            ["model.tokenizer.train=null", "model.tokenizer.source=foo/bar"],
            "model.tokenizer.source",
        ),
    ],
)
def test_plan_of_a_hub_model_without_a_hub_is_a_resource_error(
    preset: str, overrides: list[str], where: str, tmp_path: Path
) -> None:
    config = str(ROOT / "configs" / "presets" / f"{preset}.yaml")
    done = run_offline(tmp_path, "-m", "flows.cli", "plan", config, *overrides, "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    error: dict[str, Any] = json.loads(done.stdout)["error"]
    assert (error["code"], error["where"]) == ("hub_unreachable", where)
    for remedy in ("local folder", ".gguf file as model.base", "HF_HUB_OFFLINE=1"):
        assert remedy in error["hint"]


def resolve(tmp_path: Path, name: str) -> str:
    """The error that resolving a name ends with, as `class code rule hint`."""
    code = """
import sys
from configs.errors import ModelmillError
from configs.model import ModelConfig
from tasks.base_model import resolve_base
try:
    print(resolve_base(ModelConfig(base=sys.argv[1])))
except ModelmillError as error:
    print(type(error).__name__, error.code, error.rule, error.hint)
"""
    done = run_offline(tmp_path, "-c", code, name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_name_that_may_be_a_folder_without_a_hub_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    shown = resolve(tmp_path, "models/tinny")
    assert shown.startswith("ConfigError not_a_model")
    assert "did you mean" in shown and "HF_HUB_OFFLINE=1" in shown


@pytest.mark.parametrize("name", ["owner/a--b", "owner/" + "x" * 97])
def test_id_that_the_hub_package_refuses_is_a_config_error(name: str, tmp_path: Path) -> None:
    assert resolve(tmp_path, name).startswith("ConfigError not_a_model")


def test_cached_commit_answers_where_the_hub_is_down(tmp_path: Path) -> None:
    reference = tmp_path / "hub" / "hub" / "models--owner--name" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text("0" * 40)
    assert "0" * 40 in resolve(tmp_path, "owner/name")
