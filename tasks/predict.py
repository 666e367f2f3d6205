"""Answer a text from an exported model folder, through the folder's own chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import ConfigError, ResourceError
from tasks.errors import first_line

_NEEDED = ("config.json", "tokenizer_config.json")


def answer(
    folder: Path | str, text: str, *, system: str | None = None, max_new_tokens: int = 256
) -> str:
    """The model's greedy answer to a user's message.

    A model without a chat template (trained on bare prompts and completions) goes on from the text.

    Args:
        folder: A Hugging Face folder with weights, tokenizer and chat template.
        text: The user's message.
        system: A system message put before it.
        max_new_tokens: Longest answer (tokens).

    Returns:
        The answer without special tokens.

    Raises:
        ConfigError: The folder isn't a model (`not_a_model`), or its chat template doesn't take the
            messages (`template_refuses`).
        ResourceError: Its files can't be read (`model_unreadable`).
    """
    folder = Path(folder)
    _check_folder(folder)
    import torch

    tokenizer, model = _load(folder)
    prompt = _prompt(tokenizer, text, system=system, where=str(folder))
    prompt_len: int = prompt["input_ids"].shape[1]
    with torch.inference_mode():
        output: Any = model.generate(
            input_ids=prompt["input_ids"],
            attention_mask=prompt["attention_mask"],
            do_sample=False,
            max_new_tokens=max_new_tokens,
        )
    return str(tokenizer.decode(output[0, prompt_len:], skip_special_tokens=True))


def _load(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, from nothing but the folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # `tokenizers` raises bare exceptions, and the files come from outside: they are at fault.
        raise ResourceError(
            f"the model's files can't be read: {first_line(error)}",
            where=str(folder),
            hint="export it again: modelmill run CONFIG --until export",
            code="model_unreadable",
        ) from error
    return tokenizer, model.eval()


def _prompt(tokenizer: Any, text: str, *, system: str | None, where: str) -> Any:
    """`input_ids` and `attention_mask` of a prompt, (1, prompt_len) both."""
    from jinja2.exceptions import TemplateError

    if tokenizer.chat_template is None and system is None:
        return tokenizer(text, return_tensors="pt")
    messages = [{"role": "system", "content": system}] if system is not None else []
    try:
        return tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
    except (TemplateError, ValueError) as error:
        raise ConfigError(
            f"the model's chat template doesn't take the messages: {error}",
            where=where,
            hint="leave out the system message" if system is not None else "see its model card",
            code="template_refuses",
        ) from error


def _check_folder(folder: Path) -> None:
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if not missing:
        return
    inner = folder / "model"
    raise ConfigError(
        f"this isn't a model folder: {' and '.join(missing)} missing"
        if folder.is_dir()
        else "there is no such folder",
        where=str(folder),
        hint=f"did you mean {inner}?"
        if (inner / "config.json").is_file()
        else "give an exported model's folder; `modelmill run` prints it at its end",
        code="not_a_model",
    )
