"""The `export` section: what the finished model folder looks like."""

from __future__ import annotations

from typing import Literal

from configs.section import Section, identity


class ExportConfig(Section):
    """A Hugging Face folder that was proven by loading it again."""

    dtype: Literal["float32", "bfloat16", "float16"] = identity(
        "float32", description="Type of the exported weights."
    )
    license: str | None = identity(None, description="Licence named in the model card.")
    proof_rows: int = identity(
        8, ge=1, description="Held-out rows whose logits must match after loading."
    )
    require_stop: bool = identity(
        True, description="Refuse a model that ends none of the proof rows' answers by itself."
    )
