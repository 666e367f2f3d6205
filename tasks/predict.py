"""Answer a text from an exported model folder, through the folder's own chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import ConfigError, ResourceError


def answer(
    folder: Path | str, text: str, *, system: str | None = None, max_new_tokens: int = 256
) -> str:
    """The model's greedy answer to a user's message.

    Args:
        folder: A Hugging Face folder with weights, tokenizer and chat template.
        text: The user's message.
        system: A system message put before it.
        max_new_tokens: Longest answer (tokens).

    Returns:
        The answer without special tokens.

    Raises:
        ConfigError: The folder isn't a model (`not_a_model`), has no chat template
            (`no_chat_template`), or its template refuses the messages (`template_refuses`).
        ResourceError: Its files can't be read (`model_unreadable`).
    """
    folder = Path(folder)
    _check_folder(folder)
    import torch
    from jinja2.exceptions import TemplateError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    except Exception as error:
        # The readers of the many file formats have no common exception.
        raise ResourceError(
            f"the model's files can't be read: {type(error).__name__}: {error}",
            where=str(folder),
            hint="export it again: modelmill run CONFIG --until export",
            code="model_unreadable",
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the model has no chat template",
            where=str(folder),
            hint="give a folder that modelmill exported; it holds chat_template.jinja",
            code="no_chat_template",
        )
    messages = [{"role": "system", "content": system}] if system is not None else []
    try:
        prompt: Any = tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
    except TemplateError as error:
        raise ConfigError(
            f"the model's chat template refuses the messages: {error}",
            where=str(folder),
            hint="leave out the system message" if system is not None else "",
            code="template_refuses",
        ) from error
    prompt_len: int = prompt["input_ids"].shape[1]
    with torch.inference_mode():
        output: Any = model.generate(
            input_ids=prompt["input_ids"],
            attention_mask=prompt["attention_mask"],
            do_sample=False,
            max_new_tokens=max_new_tokens,
        )
    return str(tokenizer.decode(output[0, prompt_len:], skip_special_tokens=True))


def _check_folder(folder: Path) -> None:
    if (folder / "config.json").is_file() and (folder / "tokenizer_config.json").is_file():
        return
    inner = folder / "model"
    if not folder.is_dir():
        rule = "there is no such folder"
    else:
        missing = [n for n in ("config.json", "tokenizer_config.json") if not (folder / n).exists()]
        rule = f"this isn't a model folder: {' and '.join(missing)} missing"
    raise ConfigError(
        rule,
        where=str(folder),
        hint=f"did you mean {inner}?"
        if (inner / "config.json").is_file()
        else "give an exported model's folder; `modelmill run` prints it at its end",
        code="not_a_model",
    )
