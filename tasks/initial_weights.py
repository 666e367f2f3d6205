"""The weights that training starts from: read from files, or new and random."""

from __future__ import annotations

import difflib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError
from configs.model import ScratchConfig
from tasks.errors import first_line

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

# Names that `transformers` or a GGUF file leave in a config and that say nothing about the model.
_LEAKS = ("_name_or_path", "_model_name_or_path", "local_files_only", "quantization_config")


def loaded_model(
    source: Path, tokenizer_dir: Path, *, attention: str, trust_remote_code: bool
) -> PreTrainedModel:
    """The model in a folder or `.gguf` file, in fp32, quantised weights unpacked.

    Raises:
        ConfigError: It can't be loaded as a causal language model, or its embedding has fewer rows
            than the tokenizer has ids.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    gguf = source.suffix == ".gguf"
    arguments: dict[str, Any] = {}
    if gguf:
        arguments["gguf_file"] = source.name
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    else:
        arguments["use_safetensors"] = True
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(source.parent if gguf else source),
            output_loading_info=True,
            dtype=torch.float32,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            **arguments,
        )
    except Exception as error:
        # Each reader of such a file raises errors of its own kind; it comes from outside.
        _check_attention(error, attention)
        raise _unloadable(source, error) from error
    model: PreTrainedModel = loaded[0]
    _check_complete(source, loaded[1])
    embeddings: Any = model.get_input_embeddings()
    _check_vocabulary(embeddings.weight.shape[0], tokenizer_dir, "model.base")
    _clean(model.config)
    return model


def _check_complete(source: Path, loading: dict[str, Any]) -> None:
    """Refuses weights that transformers would silently fill up with random ones."""
    lacking = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
    if lacking:
        raise ConfigError(
            f"{source} has no fitting weights for {len(lacking)} tensors of its config, such as "
            f"{lacking[0]}",
            where="model.base",
            hint="config.json and the weights have to belong together",
            code="weights_missing",
        )


def new_model(
    scratch: ScratchConfig, tokenizer_dir: Path, *, attention: str, seed: int
) -> PreTrainedModel:
    """A model of the wished architecture with random weights drawn from `seed`.

    Vocabulary size and the ids of BOS, EOS and PAD come from the tokenizer unless they are fixed.

    Raises:
        ConfigError: The architecture or one of its values doesn't exist, values contradict each
            other, or the vocabulary is smaller than the tokenizer's.
    """
    from transformers import AutoModelForCausalLM, set_seed

    config = _scratch_config(scratch, tokenizer_dir)
    set_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    except Exception as error:
        # Architectures don't check their values: what fails depends on where one is used first.
        _check_attention(error, attention)
        raise _bad_value(first_line(error)) from error
    _clean(model.config)
    return model.float()


def gguf_generation_config(source: Path) -> GenerationConfig:
    """The generation config of a GGUF file, made from its header.

    Raises:
        ConfigError: The file is broken.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(str(source.parent), gguf_file=source.name)
    except Exception as error:
        raise _unloadable(source, error) from error
    return GenerationConfig.from_model_config(config)


def check_architecture(scratch: ScratchConfig) -> None:
    """Refuses an architecture or a name of its values that doesn't exist.

    Raises:
        ConfigError: Names the nearest right one.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if scratch.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        near = difflib.get_close_matches(
            scratch.model_type, list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), n=1
        )
        raise ConfigError(
            f"{scratch.model_type} is no causal language model of transformers",
            where="model.scratch.model_type",
            hint=f"did you mean {near[0]}?" if near else "llama, qwen3 and gpt2 are some",
            code="unknown_model_type",
        )
    family: Any = CONFIG_MAPPING[scratch.model_type]
    known = {item.name for item in fields(family)} | set(family.attribute_map)
    for name in scratch.fixed:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            raise ConfigError(
                f"{scratch.model_type} has no value {name}",
                where=f"model.scratch.fixed.{name}",
                hint=f"did you mean {near[0]}?" if near else f"see {family.__name__}",
                code="unknown_key",
            )


def _scratch_config(scratch: ScratchConfig, tokenizer_dir: Path) -> PretrainedConfig:
    from transformers import AutoConfig, AutoTokenizer

    check_architecture(scratch)
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir), local_files_only=True)
    pad = tokenizer.pad_token_id
    defaults: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id if pad is None else pad,
    }
    try:
        config = AutoConfig.for_model(scratch.model_type, **{**defaults, **scratch.fixed})
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _bad_value(lines[-1].strip()) from error
    _check_heads(config)
    _check_vocabulary(config.vocab_size, tokenizer_dir, "model.scratch.fixed.vocab_size")
    return config


def _check_heads(config: PretrainedConfig) -> None:
    """Refuses head counts that would fail only deep in the forward pass."""
    hidden = getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None)
    for name, value in (("num_attention_heads", heads), ("num_key_value_heads", groups)):
        if isinstance(value, int) and value < 1:
            raise _bad_value(f"{name} must be at least 1, not {value}")
    has_head_dim = getattr(config, "head_dim", None) not in (None, (hidden or 0) // (heads or 1))
    if hidden and heads and hidden % heads and not has_head_dim:
        raise _bad_value(
            f"hidden_size {hidden} isn't a multiple of num_attention_heads {heads}",
            hint=f"hidden_size {hidden - hidden % heads or heads} is",
        )
    if heads and groups and heads % groups:
        fitting = max(divisor for divisor in range(1, groups + 1) if heads % divisor == 0)
        raise _bad_value(
            f"num_attention_heads {heads} isn't a multiple of num_key_value_heads {groups}",
            hint=f"num_key_value_heads {fitting} fits",
        )


def _check_vocabulary(num_embeddings: int, tokenizer_dir: Path, where: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    needed = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if needed > num_embeddings:
        raise ConfigError(
            f"the model has {num_embeddings} embeddings, the tokenizer ids up to {needed - 1}",
            where=where,
            hint=f"use the model's own tokenizer, or a vocabulary of at least {needed}",
            code="vocabulary_mismatch",
        )


def _check_attention(error: Exception, attention: str) -> None:
    """Raises what a failed load says about the attention, if that is what it failed for."""
    if "attention implementation" in str(error) and attention != "eager":
        raise ConfigError(
            f"this architecture has no {attention} attention",
            where="train.attention",
            hint="set train.attention to eager",
            code="no_such_attention",
        ) from error


def _clean(config: Any) -> None:
    for name in _LEAKS:
        if name in config.__dict__:
            delattr(config, name)
    config._name_or_path = ""


def _bad_value(rule: str, *, hint: str = "") -> ConfigError:
    return ConfigError(rule, where="model.scratch.fixed", hint=hint, code="bad_model_value")


def _unloadable(source: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"no causal language model can be loaded from {source}: {first_line(error)}",
        where="model.base",
        hint="give a causal language model as safetensors or .gguf",
        code="not_a_model",
    )
