from typing import Any

import pytest
import torch

from deepbdc import create_classifier
from tests.classifiers.conftest import MakeEpisodes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("logistic", {"C": 10.0}),
        ("logistic", {"C": 0.1, "normalize": False}),
        ("softmax", {}),
        ("softmax", {"normalize": True}),
        ("prototype", {"similarity": "cosine"}),
        ("prototype", {"similarity": "inner_product"}),
        ("prototype", {"similarity": "euclidean"}),
    ],
)
def test_a_rule_scores_as_its_classifier_but_for_a_number_common_to_all_classes(
    name: str, options: dict[str, Any], make_episodes: MakeEpisodes
) -> None:
    support, labels, query = make_episodes([3, 1, 2], features=20)
    classifier = create_classifier(name, **options)
    rule = classifier.rule(support, labels, 3)
    difference = rule(query) - classifier(support, labels, query)
    assert torch.allclose(difference, difference[..., :1].expand_as(difference), atol=1e-4)


def test_a_rule_keeps_its_digits_where_representations_share_a_large_part(make_episodes: MakeEpisodes) -> None:
    support, labels, query = make_episodes([2, 2], features=8)
    rule = create_classifier("prototype").rule(support + 1000, labels, 2)
    exact = create_classifier("prototype")((support + 1000).double(), labels, (query + 1000).double())
    got = rule(query + 1000)
    assert torch.allclose((got[..., 0] - got[..., 1]).double(), exact[..., 0] - exact[..., 1], atol=0.05)


def test_votes_are_no_rule() -> None:
    with pytest.raises(ValueError, match="not a linear rule"):
        create_classifier("svm").rule(torch.rand(1, 2, 3), torch.tensor([[0, 1]]), 2)
