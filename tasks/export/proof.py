"""Proof that an exported folder is the model that was trained: loaded anew, it says the same.

A reference (`tasks.export.reference`) holds what the checkpoint says about a few held-out rows.
This module run in a process of its own loads only the exported folder, offline, and compares:

    python -m tasks.export.proof FOLDER REFERENCE.npz

It prints one JSON object, the fields of `Proof`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import ModelmillError
from tasks.export.reference import Reference, ReferenceRow, logits_at, sample_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest difference of logits by type of the exported weights, as a share of the largest logit.

In float32 the weights are the checkpoint's own and only summation order may differ. A half type
rounds each weight (relative error 2^-11 in float16, 2^-8 in bfloat16) and the layers add that up;
a lost or swapped weight is off by about 1.
"""


@dataclass(frozen=True)
class Proof:
    """What a fresh process found in the exported folder.

    Attributes:
        rows: Held-out rows compared.
        max_abs_logit_difference: Largest absolute difference of a logit from the checkpoint's.
        max_abs_logit: Largest absolute logit of the checkpoint, the scale of the difference.
        same_tokens: Whether tokenizer and template give the sample conversation the same ids.
        asked_rows: Rows that had room for an answer.
        stopped_rows: Rows whose answer ended with an end-of-turn token.
    """

    rows: int
    max_abs_logit_difference: float
    max_abs_logit: float
    same_tokens: bool
    asked_rows: int
    stopped_rows: int


def prove(folder: Path, reference: Reference, *, trust_remote_code: bool = False) -> Proof:
    """Load an exported folder in this process and compare it with the reference."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=trust_remote_code
    ).eval()
    difference = scale = 0.0
    for row in reference.rows:
        found = logits_at(model, row.input_ids, row.positions)
        # np.maximum, unlike max, lets NaN through.
        difference = float(np.maximum(difference, np.abs(found - row.logits).max()))
        scale = max(scale, float(np.abs(row.logits).max()))
    asked = [row for row in reference.rows if _has_room(model, row, reference.max_new_tokens)]
    return Proof(
        rows=len(reference.rows),
        max_abs_logit_difference=difference,
        max_abs_logit=scale,
        same_tokens=sample_ids(tokenizer) == reference.sample_ids,
        asked_rows=len(asked),
        stopped_rows=sum(_stops(model, row, reference.max_new_tokens) for row in asked),
    )


def prove_in_fresh_process(
    folder: Path, reference: Path, *, threads: int, trust_remote_code: bool = False
) -> Proof:
    """Run this module on an exported folder in a new Python process without a network.

    Args:
        folder: The exported folder.
        reference: The .npz file of a `Reference`.
        threads: CPU threads that the process gets; as many as the reference had, so that sums are
            taken in the same order.
        trust_remote_code: Run Python code that lies in the folder.

    Raises:
        ModelmillError: The folder can't be loaded (code `export_unloadable`).
    """
    command = [sys.executable, "-m", "tasks.export.proof", str(folder), str(reference)]
    # Its standard input ends with this process, however that ends, and the child with it.
    command.append("--end-with-stdin")
    if trust_remote_code:
        command.append("--trust-remote-code")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        ) as process,
    ):
        assert process.stdout
        output = process.stdout.read()
        process.wait()
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    if process.returncode != 0:
        raise ModelmillError(
            f"the exported folder can't be loaded in a fresh process: {(lines or ['?'])[-1]}",
            where="export",
            hint="an architecture with own code needs model.trust_remote_code=true"
            if not trust_remote_code
            else "the folder must hold all code that the model needs",
            code="export_unloadable",
        )
    return Proof(**json.loads(output.splitlines()[-1]))


def check(proof: Proof, *, dtype: str, require_stop: bool) -> None:
    """Refuse an export whose proof failed.

    Args:
        proof: What the fresh process found.
        dtype: Type of the exported weights, a key of `TOLERANCES`.
        require_stop: Also refuse a model none of whose answers ended. One is enough: the proof is
            that the folder's own end-of-turn ids end an answer, not that the model is good.

    Raises:
        ModelmillError: No row was compared (`nothing_proven`), other logits (`export_differs`),
            other token ids (`tokenizer_differs`), no answer that ended by itself (`never_stops`),
            or none that could be asked for (`no_room_to_answer`).
    """
    if proof.rows == 0:
        raise ModelmillError(
            "there is no held-out row to compare the exported model on",
            where="data.sources",
            hint="give a source split: auto, or add one with split: held_out",
            code="nothing_proven",
        )
    allowed = TOLERANCES[dtype] * max(1.0, proof.max_abs_logit)
    # Written so that NaN fails.
    if not proof.max_abs_logit_difference <= allowed:
        raise ModelmillError(
            f"the exported model's logits differ from the checkpoint's by "
            f"{proof.max_abs_logit_difference:.3g}, allowed are {allowed:.3g}",
            where="export",
            hint="float16 can't hold large values: try export.dtype=bfloat16 or float32"
            if dtype != "float32"
            else "the files were changed, or saving lost a weight of this architecture",
            code="export_differs",
        )
    if not proof.same_tokens:
        raise ModelmillError(
            "the exported tokenizer and chat template give other token ids than the prepared ones",
            where="model.tokenizer",
            hint="this tokenizer doesn't survive beside the model's config.json; name its class in "
            "tokenizer_config.json",
            code="tokenizer_differs",
        )
    if require_stop and not proof.asked_rows:
        raise ModelmillError(
            f"none of {proof.rows} held-out rows has a prompt that leaves room for an answer",
            where="export.require_stop",
            hint="lower evaluate.max_new_tokens to what the model's positions leave, or give up "
            "this proof with export.require_stop=false",
            code="no_room_to_answer",
        )
    if require_stop and not proof.stopped_rows:
        raise ModelmillError(
            f"none of {proof.asked_rows} answers ended with an end-of-turn token",
            where="export.require_stop",
            hint="train longer, raise evaluate.max_new_tokens if answers are longer than that, see "
            "no_stop_token in the data report, or accept it with export.require_stop=false",
            code="never_stops",
        )


def _has_room(model: PreTrainedModel, row: ReferenceRow, max_new_tokens: int) -> bool:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    fits = positions is None or row.prompt_len + max_new_tokens <= positions
    return row.prompt_len > 0 and fits


def _stops(model: Any, row: ReferenceRow, max_new_tokens: int) -> bool:
    """Whether an answer ends by what the folder's own generation config says."""
    import torch

    prompt = torch.from_numpy(row.input_ids[: row.prompt_len])[None]
    output: Any = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
    )
    stop_ids = model.generation_config.eos_token_id
    return int(output[0, -1]) in (stop_ids if isinstance(stop_ids, list) else [stop_ids])


def _end_with_stdin() -> None:
    """Leave at once when the process that holds the other end of standard input is gone."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description="Compare an exported folder with a reference.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--end-with-stdin", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    proof = prove(
        chosen.folder,
        Reference.load(chosen.reference),
        trust_remote_code=chosen.trust_remote_code,
    )
    print(json.dumps(asdict(proof)))


if __name__ == "__main__":
    main()
