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
