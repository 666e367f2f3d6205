"""The `evaluate` section: how base and trained model are scored on the held-out rows."""

from __future__ import annotations

from configs.section import Section, execution, identity


class EvaluateConfig(Section):
    """Loss, perplexity and exact match of greedy answers, always in fp32."""

    max_rows: int | None = identity(
        None, ge=1, description="Held-out rows scored, from the first on; null: all."
    )
    generate: bool = identity(True, description="Also answer greedily and count exact matches.")
    max_new_tokens: int = identity(128, ge=1, description="Longest answer (tokens).")
    batch_size: int = execution(
        32, ge=1, description="Rows a task takes through the model at once."
    )
    rows_per_task: int = execution(128, ge=1, description="Rows of one resumable unit of work.")
