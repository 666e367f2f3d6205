"""What the check of an export's proof refuses."""

from __future__ import annotations

import pytest

from configs.errors import ModelmillError
from tasks.export.proof import Proof, check


def test_a_proof_without_rows_is_refused() -> None:
    nothing = Proof(0, 0.0, 0.0, same_tokens=True, asked_rows=0, stopped_rows=0)
    with pytest.raises(ModelmillError) as caught:
        check(nothing, dtype="float32", require_stop=False)
    assert caught.value.code == "nothing_proven"


@pytest.mark.parametrize(
    ("asked", "stopped", "code"), [(0, 0, "no_room_to_answer"), (3, 0, "never_stops"), (3, 1, None)]
)
def test_an_answer_must_end_by_itself(asked: int, stopped: int, code: str | None) -> None:
    proof = Proof(3, 0.0, 1.0, same_tokens=True, asked_rows=asked, stopped_rows=stopped)
    check(proof, dtype="float32", require_stop=False)
    if code is None:
        check(proof, dtype="float32", require_stop=True)
        return
    with pytest.raises(ModelmillError) as caught:
        check(proof, dtype="float32", require_stop=True)
    assert caught.value.code == code
