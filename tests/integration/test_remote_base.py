"""A base model and a tokenizer in an object store: fetched once, and again when they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import S3Server, serving
from tiny_training import experiment, write_tokenizer

from configs.errors import ConfigError
from configs.model import ModelConfig
from tasks.base_model import build_model, local_base, resolve_base
from tasks.base_tokenizer import load_tokenizer_files, tokenizer_identity
from tasks.origin import find_origin

s3fs: Any = pytest.importorskip("s3fs")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with a saved model and its tokenizer below `bucket/base/`."""
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "base"
    write_tokenizer(folder)
    build_model(experiment(tmp_path), folder).save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"not wanted")
    # Its instances are kept by their arguments, and the address comes from a variable here.
    s3fs.S3FileSystem.clear_instance_cache()
    with serving() as server:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.url,
        }.items():
            monkeypatch.setenv(name, value)
        for path in folder.iterdir():
            server.objects[f"bucket/base/{path.name}"] = path.read_bytes()
        yield server


def named(source: str) -> ModelConfig:
    return ModelConfig.model_validate({"base": "s3://bucket/base", "tokenizer": {"source": source}})


def saved_template(source: str, into: Path) -> str | None:
    config = named(source)
    load_tokenizer_files(config, resolve_base(config), into)
    template = into / "chat_template.jinja"
    return template.read_text() if template.exists() else None


def test_fetched_once(server: S3Server) -> None:
    base = resolve_base(named("s3://bucket/base"))
    fetched = local_base(base)
    inodes = {path.name: path.stat().st_ino for path in fetched.iterdir()}
    assert "model.safetensors" in inodes and "pytorch_model.bin" not in inodes
    for name in inodes:
        assert (fetched / name).read_bytes() == server.objects[f"bucket/base/{name}"]

    again = local_base(base)
    assert {path.name: path.stat().st_ino for path in again.iterdir()} == inodes


def test_changed_template_beside_the_same_weights_is_used(server: S3Server, tmp_path: Path) -> None:
    source = "s3://bucket/base"
    before = tokenizer_identity(named(source), resolve_base(named(source)))
    assert saved_template(source, tmp_path / "first") is None

    change_template(server, "bucket/base")
    assert tokenizer_identity(named(source), resolve_base(named(source))) != before
    assert saved_template(source, tmp_path / "second") == "{# changed #}"


def test_tokenizers_of_two_places_are_kept_apart(server: S3Server, tmp_path: Path) -> None:
    for key in list(server.objects):
        server.objects[key.replace("base/", "other/")] = server.objects[key]
    change_template(server, "bucket/other")
    assert saved_template("s3://bucket/base", tmp_path / "first") is None
    assert saved_template("s3://bucket/other", tmp_path / "second") == "{# changed #}"
    origins: list[Any] = [
        find_origin(f"s3://bucket/{name}", None, {}, where="") for name in ("base", "other")
    ]
    assert local_base(origins[0]) != local_base(origins[1])


def change_template(server: S3Server, folder: str) -> None:
    server.objects[f"{folder}/chat_template.jinja"] = b"{# changed #}"


def test_template_in_the_store(server: S3Server, tmp_path: Path) -> None:
    server.objects["bucket/own.jinja"] = b"{# own #}"
    template = {"chat_template": "s3://bucket/own.jinja"}
    config = ModelConfig.model_validate({"base": "s3://bucket/base", "tokenizer": template})
    base = resolve_base(config)
    before = tokenizer_identity(config, base)
    load_tokenizer_files(config, base, tmp_path / "into")
    assert (tmp_path / "into" / "chat_template.jinja").read_text() == "{# own #}"

    server.objects["bucket/own.jinja"] = b"{# another #}"
    assert tokenizer_identity(config, base) != before
    del server.objects["bucket/own.jinja"]
    with pytest.raises(ConfigError, match=r"no template file s3://bucket/own\.jinja"):
        tokenizer_identity(config, base)
