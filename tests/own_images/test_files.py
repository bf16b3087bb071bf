"""Files of fitted classifiers: what was learnt is kept, and files of earlier versions still work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepbdc import FewShotClassifier, estimator, weight_files
from tests.own_images.test_parts import SmallNetwork, noise


def fitted() -> FewShotClassifier:
    return FewShotClassifier(SmallNetwork()).fit(noise(6), ["a", "b", "a", "b", "a", "a"])


def test_loading_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fitted()
    content, expected = first.to_bytes(), first.predict_proba(noise(9))

    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the classifier was fitted again")

    monkeypatch.setattr(estimator, "learn_confidence", fail)
    loaded = FewShotClassifier.load(content, backbone=SmallNetwork())
    np.testing.assert_array_equal(loaded.predict_proba(noise(9)), expected)
    familiar = [answer.familiarity for answer in loaded.classify(noise(9))]
    assert familiar == [answer.familiarity for answer in first.classify(noise(9))]


@pytest.mark.parametrize("change", ["missing", "of other classes"])
def test_a_file_without_what_was_learnt_is_fitted_again(change: str, tmp_path: Path) -> None:
    """Files of earlier versions do not have it."""
    tensors, header = weight_files.from_bytes(fitted().to_bytes(), Path("file"))
    if change == "missing":
        del header["learnt"]
        tensors = {name: value for name, value in tensors.items() if not name.startswith(("rule.", "directions"))}
    else:
        tensors["rule.weights"] = tensors["rule.weights"][:, :1].clone()
    content = weight_files.as_bytes(tensors, json.loads(json.dumps(header)))
    loaded = FewShotClassifier.load(content, backbone=SmallNetwork())
    np.testing.assert_allclose(loaded.predict_proba(noise(9)), fitted().predict_proba(noise(9)), rtol=1e-6)


def test_a_loaded_classifier_goes_on_learning() -> None:
    loaded = FewShotClassifier.load(fitted().to_bytes(), backbone=SmallNetwork())
    torch.testing.assert_close(loaded.representations_, fitted().representations_)
    assert loaded.explain(noise(1)[0]).nearest[0].index == 0
    loaded.partial_fit(noise(8)[6:], ["c", "c"])
    again = FewShotClassifier(SmallNetwork()).fit(noise(8), ["a", "b", "a", "b", "a", "a", "c", "c"])
    np.testing.assert_allclose(loaded.predict_proba(noise(9)), again.predict_proba(noise(9)), rtol=1e-5)
