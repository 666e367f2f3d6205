"""From what a user holds (a path, a dict, model and tokenizer objects) to an experiment."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.experiment import Experiment
from configs.loading import load_experiment, parse_experiment
from tasks.storage import Location

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Config = Experiment | dict[str, Any] | str | Path


def load(config: Config, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a path, a dict or an experiment says, with overrides.

    Raises:
        ConfigError: It isn't right; all faults are named at once.
    """
    if isinstance(config, Experiment):
        return parse_experiment(config, overrides) if overrides else config
    if isinstance(config, dict):
        return parse_experiment(config, overrides)
    return load_experiment(config, overrides)


def with_objects(
    experiment: Experiment,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Experiment:
    """The experiment that starts from these objects instead of what its `model` section names.

    They are saved as `<workspace>/objects/<kind>-<hash>/`, where workers on every node find them.
    A model alone keeps the tokenizer that the config names, be it the base's own; a chat template
    in the config holds for a tokenizer object, too.
    """
    workspace = Location(experiment.workspace, experiment.compute.storage_options)
    section = experiment.model
    chosen = section.tokenizer
    if tokenizer is not None:
        source = _saved("tokenizer", tokenizer.save_pretrained, workspace)
        chosen = chosen.model_copy(update={"source": source, "revision": None, "train": None})
    elif model is not None and chosen.source is None and chosen.train is None:
        own = {"source": section.base, "revision": section.revision}
        chosen = chosen.model_copy(update=own)
    section = section.model_copy(update={"tokenizer": chosen})
    if model is not None:
        base = _saved("model", model.save_pretrained, workspace)
        section = section.model_copy(update={"base": base, "revision": None, "scratch": None})
    return experiment.model_copy(update={"model": section})


def _saved(kind: str, save: Callable[[str], Any], workspace: Location) -> str:
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.name.encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        target = workspace.join("objects", f"{kind}-{digest.hexdigest()[:32]}")
        if not target.join("config.json" if kind == "model" else "tokenizer_config.json").exists():
            for path in sorted(files, key=lambda path: path.name.endswith("config.json")):
                target.join(str(path.relative_to(folder))).upload(path)
    return target.uri
