"""Bad input through the command line: the exit code, the place, and no traceback."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox, give_room, small_disk, write_sandbox

GOOD = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}'


@pytest.fixture
def sandbox(prefect_api: str, tmp_path: Path) -> Sandbox:
    """One Prefect server for all, which spares each run the start of a temporary one."""
    made = write_sandbox(tmp_path / "box")
    return dataclasses.replace(made, variables={"PREFECT_API_URL": prefect_api})


def failure(
    sandbox: Sandbox, *overrides: str, config: Path | None = None, until: str = "prepare"
) -> dict[str, Any]:
    """A run that must fail; gives the JSON's error with the exit code."""
    done = sandbox.call(
        "run", str(config or sandbox.config), *overrides, "--until", until, "--json"
    )
    assert "Traceback" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] == "failed"
    return answer["error"] | {"exit_code": done.returncode, "stderr": done.stderr}


def test_unknown_key(sandbox: Sandbox) -> None:
    error = failure(sandbox, "train.learning_rat=1e-3")
    assert (error["exit_code"], error["where"]) == (2, "train.learning_rat")
    assert "train.learning_rate" in error["hint"]


def test_unknown_value_of_a_new_model_before_the_data_is_prepared(sandbox: Sandbox) -> None:
    error = failure(sandbox, "model.scratch.fixed.hiden_size=32", until="train")
    assert (error["exit_code"], error["where"]) == (2, "model.scratch.fixed.hiden_size")
    assert "hidden_size" in error["hint"]
    assert not (sandbox.workspace / "prepare").exists()


def test_wrong_type(sandbox: Sandbox) -> None:
    error = failure(sandbox, "train.global_batch_size=many")
    assert (error["exit_code"], error["where"]) == (2, "train.global_batch_size")


def test_missing_config(sandbox: Sandbox) -> None:
    error = failure(sandbox, config=sandbox.folder / "tinny.yaml")
    assert error["exit_code"] == 2
    assert "tiny.yaml" in error["hint"]


def test_missing_file_names_the_nearest(sandbox: Sandbox) -> None:
    error = failure(sandbox, f"data.sources[0].path={sandbox.folder}/row.jsonl")
    assert (error["exit_code"], error["where"]) == (3, "data.sources[0].path")
    assert "rows.jsonl" in error["hint"]


def test_empty_file(sandbox: Sandbox) -> None:
    sandbox.data.write_bytes(b"")
    error = failure(sandbox)
    assert (error["exit_code"], error["where"]) == (3, "data.sources[0].path")
    assert str(sandbox.data) in error["rule"]


BAD_LINES = {
    "no_messages": b'{"messages": []}',
    "messages is": b'{"messages": "hello"}',
    "null_content": b'{"messages": [{"role": "user", "content": null}]}',
    "no_assistant_turn": b'{"messages": [{"role": "user", "content": "q"}]}',
    "invalid_utf8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "invalid_json": b'{"messages": [}',
    "truncated_line": GOOD[:30].encode(),
}


def test_every_bad_row_is_named_by_file_line_and_reason(sandbox: Sandbox) -> None:
    lines = [line for bad in BAD_LINES.values() for line in (GOOD.encode(), bad)]
    sandbox.data.write_bytes(b"\n".join(lines))
    error = failure(sandbox)
    assert error["exit_code"] == 3
    assert error["where"] == f"{sandbox.data}:2"
    for number, reason in enumerate(BAD_LINES, start=1):
        (told,) = [t for t in error["hint"].splitlines() if f"{sandbox.data}:{2 * number}: " in t]
        assert reason in told


@pytest.mark.parametrize("limits", [(), ("data.limits.max_rejected=1",)], ids=["1 %", "all"])
def test_file_of_only_bad_rows(limits: tuple[str, ...], sandbox: Sandbox) -> None:
    sandbox.data.write_text("not json\n" * 20)
    error = failure(sandbox, *limits)
    assert error["exit_code"] == 3
    assert f"{sandbox.data}:1" in error["where"] + error["hint"]


def test_tokenizer_without_chat_template(sandbox: Sandbox, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    plain = Tokenizer(models.BPE({"a": 0, "</s>": 1}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    plain.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    error = failure(sandbox, "model.tokenizer.train=null", f"model.tokenizer.source={folder}")
    assert (error["exit_code"], error["where"]) == (2, "model.tokenizer.chat_template")
    assert "chatml" in error["hint"]


def test_more_workers_than_cpus(sandbox: Sandbox) -> None:
    error = failure(sandbox, "compute.num_workers=64", until="train")
    assert (error["exit_code"], error["where"]) == (4, "compute.num_workers")
    assert "2" in error["hint"]


def test_base_that_is_no_model(sandbox: Sandbox) -> None:
    (sandbox.folder / "notes").mkdir()
    error = failure(
        sandbox, "model.scratch=null", f"model.base={sandbox.folder}/notes",
    )  # fmt: skip
    assert (error["exit_code"], error["where"]) == (2, "model.base")


def test_workspace_below_a_file(sandbox: Sandbox) -> None:
    error = failure(sandbox, f"workspace={sandbox.data}/runs")
    assert error["exit_code"] == 4
    assert str(sandbox.data) in error["where"]


def test_unwritable_workspace(sandbox: Sandbox) -> None:
    error = failure(sandbox, "workspace=/proc/modelmill")
    assert error["exit_code"] == 4
    assert "/proc/modelmill" in error["where"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_full_disk_then_more_room(prefect_api: str, tmp_path: Path) -> None:
    made = write_sandbox(tmp_path / "box", rows=2000)
    sandbox = dataclasses.replace(made, variables={"PREFECT_API_URL": prefect_api})
    with small_disk(tmp_path / "small", "200k") as small:
        workspace = f"workspace={small}"
        error = failure(sandbox, workspace)
        give_room(small)
        again = sandbox.run(workspace, options=["--until", "prepare"])
    assert error["exit_code"] == 4
    assert error["code"] == "no_space"
    assert str(small) in error["where"]
    assert again["stages"]["prepare"]["metrics"]["rows_kept"] == 2000
