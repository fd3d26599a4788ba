"""What the lab extension calls a GPU's model is what a request can call it.

`models.json` has both names; `labextension/src/cluster/__tests__/rows.spec.ts` holds the extension to it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_gpufit.naming import short_model
from jupyter_gpufit.scheduling.candidates import model_glob

TABLE: list[tuple[str, str]] = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("model", "called"), TABLE)
def test_a_model_is_found_by_what_it_is_called(model: str, called: str) -> None:
    assert short_model(model) == called
    for pattern in (called, called.lower(), f"*{called}", model, model[3:8]):
        assert model_glob(pattern)(model), pattern
    assert not model_glob(f"{called}x")(model)


def test_a_model_without_a_name_has_none() -> None:
    assert short_model("") == ""
