"""The `compute` section: where and with what it runs. Nothing here changes the result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.secret import Secret
from configs.section import Section, execution


class ComputeConfig(Section):
    """Ray cluster, workers and storage access."""

    address: str | None = execution(
        None, description="Address of a running Ray cluster; null: Ray is started for the run."
    )
    num_cpus: int | None = execution(
        None, ge=1, description="CPUs of the Ray that is started for the run; null: all."
    )
    object_store_bytes: int = execution(
        200 * 2**20, ge=80 * 2**20, description="Object store of a Ray started for the run (bytes)."
    )
    num_workers: int = execution(1, ge=1, description="Training workers.")
    resources_per_worker: dict[str, Annotated[float, Field(ge=0)]] = execution(
        default_factory=lambda: {"CPU": 1.0}, description="What Ray reserves for a training worker."
    )
    threads_per_worker: int | None = execution(
        None, ge=1, description="CPU threads of a training worker; null: its CPUs, at least 1."
    )
    use_gpu: Literal["auto", True, False] = execution(
        "auto", description="Train on GPUs; auto: where the cluster has enough of them."
    )
    max_failures: int = execution(
        3, ge=0, description="Times that lost training workers are started again."
    )
    grace_seconds: float = execution(
        8.0, gt=0, description="Time that workers get to end after a stop (seconds)."
    )
    storage_options: dict[str, Secret] = execution(
        default_factory=dict,
        description="Options of the workspace's filesystem (key, secret, endpoint_url); "
        "each value an ${env:NAME} reference.",
    )
