"""An experiment: everything that one YAML file says."""

from __future__ import annotations

from configs.compute import ComputeConfig
from configs.data import DataConfig
from configs.evaluate import EvaluateConfig
from configs.export import ExportConfig
from configs.model import ModelConfig
from configs.section import PathOrUri, Section, execution, identity
from configs.train import TrainConfig


class Experiment(Section):
    """Raw data in, a better model out: what to do, where to keep it and with what to run it."""

    name: str = execution(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name for people: a-z, 0-9, `.`, `_`, `-`."
    )
    workspace: PathOrUri = execution(
        "runs", description="Folder or fsspec URI in which artifacts are kept."
    )
    model: ModelConfig = identity(description="Weights and tokenizer to start from.")
    data: DataConfig = identity(description="Rows and how they become tokens.")
    train: TrainConfig = identity(TrainConfig(), description="Optimisation.")
    evaluate: EvaluateConfig = identity(EvaluateConfig(), description="Scores.")
    export: ExportConfig = identity(ExportConfig(), description="The finished model.")
    compute: ComputeConfig = execution(ComputeConfig(), description="Where it runs.")
