"""Broken files of a base, tokenizer or template: an error that names them, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_training import LLAMA, experiment, write_tokenizer

from configs.errors import ConfigError, ResourceError
from configs.model import ModelConfig
from tasks.base_model import build_model, resolve_base
from tasks.base_tokenizer import chat_template_text, load_tokenizer_files, tokenizer_identity
from tasks.prepare.template import shipped_template


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with its tokenizer."""
    folder = tmp_path_factory.mktemp("made")
    write_tokenizer(folder / "base")
    build_model(experiment(folder), folder / "base").save_pretrained(folder / "base")
    return folder / "base"


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "base"))


def model_config(**values: Any) -> ModelConfig:
    return ModelConfig.model_validate(values)


def with_template(path: Path) -> ModelConfig:
    return model_config(base="x/y", tokenizer={"chat_template": str(path)})


def test_shipped_name_is_the_shipped_template() -> None:
    assert chat_template_text(with_template(Path("chatml"))) == shipped_template("chatml")


def test_chat_template_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError) as caught:
        chat_template_text(with_template(tmp_path / "chat.jinja"))
    error = caught.value
    assert (error.code, error.where) == ("template_encoding", "model.tokenizer.chat_template")
    assert "byte 3" in error.rule


def test_chat_template_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder") as caught:
        chat_template_text(with_template(tmp_path))
    assert caught.value.code == "template_not_found" and "chatml" in caught.value.hint
    (tmp_path / "chat.jinja").write_text("x")
    with pytest.raises(ConfigError, match=r"did you mean .*/chat\.jinja"):
        chat_template_text(with_template(tmp_path))


@pytest.mark.parametrize("name", ["~nouser/x", "~nouser/x.gguf", "x" * 300])
def test_path_of_no_user_or_of_impossible_length_as_base(name: str) -> None:
    with pytest.raises((ConfigError, ResourceError)) as caught:
        resolve_base(model_config(base=name))
    assert name in str(caught.value)


def test_chat_template_of_no_user() -> None:
    with pytest.raises(ConfigError, match="no template file"):
        chat_template_text(with_template(Path("~nouser/x.jinja")))


def test_folder_that_is_named_like_a_gguf_file(base: Path) -> None:
    renamed = base.rename(base.with_name("base.gguf"))
    assert resolve_base(model_config(base=str(renamed))).kind == "folder"


def test_base_folder_without_read_permission(base: Path, tmp_path: Path) -> None:
    """Root may read everything, so a process without its rights asks."""
    base.chmod(0o000)
    code = """
import os, sys
from configs.errors import ResourceError
from configs.model import ModelConfig
from tasks.base_model import resolve_base
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for name in (sys.argv[1], sys.argv[1] + "/below"):
    try:
        resolve_base(ModelConfig(base=name))
    except ResourceError as error:
        assert error.code == "no_permission", error
    else:
        sys.exit("it was read")
"""
    for parent in tmp_path.parents[:3]:
        if parent.stat().st_uid == os.getuid() and parent != Path(parent.anchor):
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(base)],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        base.chmod(0o755)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}'),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
    ],
)
def test_broken_tokenizer_file(name: str, content: bytes, base: Path, tmp_path: Path) -> None:
    (base / name).write_bytes(content)
    config = model_config(base=str(base))
    with pytest.raises(ConfigError) as caught:
        load_tokenizer_files(config, resolve_base(config), tmp_path / "into")
    assert (caught.value.code, caught.value.where) == ("no_tokenizer", "model.tokenizer")
    assert str(base) in caught.value.rule


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"\xff", b'{"eos_token_id": "x"}', b'{"eos_token_id": [1, -2]}']
)
def test_broken_generation_config(content: bytes, base: Path, tmp_path: Path) -> None:
    (base / "generation_config.json").write_bytes(content)
    config = model_config(base=str(base))
    with pytest.raises(ConfigError) as caught:
        load_tokenizer_files(config, resolve_base(config), tmp_path / "into")
    assert caught.value.code == "bad_generation_config"
    assert "generation_config.json" in caught.value.rule


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    "break_it",
    [
        lambda base: (base / "config.json").write_bytes(b"{"),
        lambda base: (base / "config.json").write_bytes(b"\xff"),
        lambda base: (base / "config.json").write_bytes(
            b'{"model_type": "llama", "hidden_size": "big"}'
        ),
        lambda base: cut(base / "model.safetensors", 0),
        lambda base: cut(base / "model.safetensors", 7),
        lambda base: cut(base / "model.safetensors", 100),
        lambda base: cut(base / "model.safetensors", -4),
    ],
)
def test_broken_base_folder(break_it: Any, base: Path, made: Path, tmp_path: Path) -> None:
    break_it(base)
    config = experiment(tmp_path).model_copy(update={"model": model_config(base=str(base))})
    with pytest.raises(ConfigError) as caught:
        build_model(config, made)
    assert caught.value.where == "model.base"


@pytest.mark.parametrize("size", [4, 10, 40, 200])
def test_gguf_cut_short(size: int, made: Path, tmp_path: Path) -> None:
    import numpy as np
    from gguf import GGUFWriter

    path = tmp_path / "model.gguf"
    writer: Any = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    cut(path, size)

    config = model_config(base=str(path))
    origin = resolve_base(config)
    assert tokenizer_identity(config, origin)
    with pytest.raises(ConfigError) as caught:
        load_tokenizer_files(config, origin, tmp_path / "into")
    assert caught.value.code == "no_tokenizer"
    with pytest.raises(ConfigError) as caught:
        build_model(experiment(tmp_path).model_copy(update={"model": config}), made)
    assert caught.value.code == "not_a_model"
    # Another's tokenizer is fine, but the generation config comes from the file.
    write_tokenizer(tmp_path / "tokenizer")
    other = model_config(base=str(path), tokenizer={"source": str(tmp_path / "tokenizer")})
    with pytest.raises(ConfigError) as caught:
        load_tokenizer_files(other, origin, tmp_path / "into")
    assert caught.value.code == "not_a_model"


@pytest.mark.parametrize(
    "fixed",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": -4},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": -3},
        {"hidden_act": "nonsense"},
        {"rope_parameters": {"rope_type": "nonsense"}},
        {"intermediate_size": -1},
    ],
)
def test_nonsense_in_a_new_model(fixed: dict[str, Any], made: Path, tmp_path: Path) -> None:
    config = experiment(tmp_path, scratch=LLAMA | {"fixed": LLAMA["fixed"] | fixed})
    with pytest.raises(ConfigError) as caught:
        build_model(config, made)
    assert caught.value.code == "bad_model_value" and caught.value.rule
