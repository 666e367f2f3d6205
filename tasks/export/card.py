"""The model card: README.md of an exported folder.

It is made of what decides the result only, so the same artifact always gets the same card: no date,
no paths, no machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tasks.export.proof import Proof


@dataclass(frozen=True)
class CardFacts:
    """What a card tells.

    Attributes:
        model_type: Architecture as `transformers` names it.
        num_parameters: Weights of the model, tied ones once.
        dtype: Type of the exported weights.
        license: Licence to name, if any.
        base_model: Hub id that training started from; None for other bases.
        base: Content identity of what training started from.
        config: Identity of the experiment: no secret and no path of a machine is part of it.
        data: Result of the prepare stage.
        files: Content identity of each source file, in order, as prepare's manifest has it.
        evaluation: Result of the evaluate stage.
        proof: What the proof found.
        fingerprints: Fingerprint of each stage that led here.
    """

    model_type: str
    num_parameters: int
    dtype: str
    license: str | None
    base_model: str | None
    base: Mapping[str, Any]
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    files: Any
    evaluation: Mapping[str, Any]
    proof: Proof
    fingerprints: Mapping[str, str]


def model_card(facts: CardFacts) -> str:
    """The card as Markdown with the YAML header that the Hugging Face hub reads."""
    sections = [
        _header(facts),
        _what_it_is(facts),
        _usage(),
        _scores(facts.evaluation),
        _data(facts.data, facts.files),
        _training(facts),
        _proof(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _header(facts: CardFacts) -> str:
    header: dict[str, Any] = {
        "license": facts.license,
        "base_model": facts.base_model,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["modelmill", facts.model_type],
    }
    return f"---\n{_yaml({key: value for key, value in header.items() if value is not None})}\n---"


def _what_it_is(facts: CardFacts) -> str:
    scratch = facts.config["model"]["scratch"] is not None
    start = facts.base_model or "the weights whose hashes stand under Training"
    origin = "trained from random weights" if scratch else f"fine-tuned from {start}"
    return (
        f"# {facts.model_type}, {_millions(facts.num_parameters)} parameters, "
        f"{'trained from scratch' if scratch else 'fine-tuned'}\n\n"
        f"A chat model of type `{facts.model_type}` with {facts.num_parameters:,} parameters "
        f"({facts.dtype}), {origin} by modelmill."
    )


def _usage() -> str:
    return """## How to use it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "..."}],
    add_generation_prompt=True, return_tensors="pt", return_dict=True,
)
output = model.generate(**prompt, max_new_tokens=256, do_sample=False)
print(tokenizer.decode(output[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))
```

or on the command line: `modelmill predict . "..."`"""


def _scores(evaluation: Mapping[str, Any]) -> str:
    base, trained = evaluation["scores"]["base"], evaluation["scores"]["trained"]
    differences: Mapping[str, Mapping[str, float]] = evaluation["differences"]
    rows = ["| score | before | after | difference (95 % interval) |", "|---|---|---|---|"]
    for name, form in (("loss", ".4f"), ("perplexity", ".3f"), ("exact_match", ".2%")):
        if base[name] is None or trained[name] is None:
            continue
        change = differences.get(name)
        interval = (
            f"{change['difference']:+{form}} ({change['low']:+{form}} to {change['high']:+{form}})"
            if change
            else ""
        )
        rows.append(
            f"| {name.replace('_', ' ')} | {base[name]:{form}} | {trained[name]:{form}} "
            f"| {interval} |"
        )
    return (
        f"## Scores\n\nOn {trained['rows']:,} held-out rows with {trained['tokens']:,} trained "
        "tokens, in fp32; loss per trained token, exact match of greedy answers to each row's last "
        f"turn; paired bootstrap over rows. Rows: sha256 `{evaluation['rows_sha256']}`.\n\n"
        + "\n".join(rows)
    )


def _data(data: Mapping[str, Any], files: Any) -> str:
    lines = ["| figure | value |", "|---|---|"]
    for name, value in data.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{key}: {count}" for key, count in value.items()) or "none"
        shown = f"{value:,}" if isinstance(value, int) else value
        lines.append(f"| {name.replace('_', ' ')} | {shown} |")
    return "## Data\n\n" + "\n".join(lines) + f"\n\nSource files:\n\n```yaml\n{_yaml(files)}\n```"


def _proof(facts: CardFacts) -> str:
    proof = facts.proof
    return (
        "## Proof\n\n"
        f"Loaded again in a fresh process: on {proof.rows} held-out rows the logits differ from "
        f"the training checkpoint's by at most {proof.max_abs_logit_difference:.2g} (largest logit "
        f"{proof.max_abs_logit:.3g}); tokenizer and chat template give the same tokens; "
        f"{proof.stopped_rows} of {proof.asked_rows} answers ended by themselves.\n\n"
        "Fingerprints: "
        + ", ".join(f"{stage} `{value}`" for stage, value in facts.fingerprints.items())
        + "."
    )


def _training(facts: CardFacts) -> str:
    decided = {"base": dict(facts.base), **facts.config}
    return f"## Training\n\nWhat decided the result:\n\n```yaml\n{_yaml(decided)}\n```"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n")


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count < 1e9 else f"{count / 1e9:.2f} B"
