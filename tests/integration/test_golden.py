"""What the tiny experiment comes to: a change here means that a stage's version must be raised.

Bytes of trained weights differ from one kind of processor to another, so losses are compared.
Prepare's own bytes are held in test_prepare_stage.py, the model card's in test_card.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from sandbox import Sandbox

from tasks.evaluate.stage import EvaluateStage
from tasks.train.stage import TrainStage


def test_losses_of_training(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    trained = finished[1]["stages"]["train"]["metrics"]
    assert TrainStage.version == 1
    assert trained["steps"] == 30
    assert trained["first_loss"] == pytest.approx(5.758954, rel=1e-3)
    assert trained["last_loss"] == pytest.approx(3.418324, rel=1e-3)


def test_scores_of_evaluation(finished: tuple[Sandbox, dict[str, Any]]) -> None:
    scores = finished[1]["stages"]["evaluate"]["metrics"]["scores"]
    assert EvaluateStage.version == 1
    assert scores["base"]["tokens"] == scores["trained"]["tokens"] == 231
    assert scores["base"]["loss"] == pytest.approx(5.751048, rel=1e-3)
    assert scores["trained"]["loss"] == pytest.approx(3.418829, rel=1e-3)
