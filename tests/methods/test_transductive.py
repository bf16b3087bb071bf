"""LaplacianShot, TIM, PT-MAP and ICI as methods: what they remember, and what they say of themselves."""

import numpy as np
import pytest
import torch

from deepbdc.classifiers import create_classifier
from deepbdc.classifiers.laplacian import LaplacianClassifier
from deepbdc.methods import Method, create_method
from tests.methods.test_contract import create, tasks, training_classes


def test_laplacianshot_subtracts_the_mean_of_the_training_images() -> None:
    method = create("laplacianshot", weight=0.5)
    source, count = method.source(training_classes().dataset), len(training_classes().dataset)
    rows = [source.rows(np.array([place]))[0].double() for place in range(count)]
    mean = torch.stack(rows).sum(dim=0) / count
    torch.testing.assert_close(method.memory["mean"].double(), mean, rtol=1e-5, atol=1e-7)
    support, labels, query = tasks(method)
    expected = LaplacianClassifier(0.5)(support - mean.float(), labels, query - mean.float())
    torch.testing.assert_close(method.classify(support, labels, query), expected, rtol=1e-4, atol=1e-5)


def test_options_by_the_number_of_shots() -> None:
    laplacian = create("laplacianshot", weight={1: 0.7, 5: 0.2}, neighbours=3, rectify=False)
    assert [laplacian.classifier_for(shot).weight for shot in (1, 2, 5, 10)] == [0.7, 0.7, 0.2, 0.2]
    assert (laplacian.classifier_for(5).neighbours, laplacian.classifier_for(5).rectify) == (3, False)
    transport = create("pt_map", step={1: 0.4, 5: 0.2}, power=0.3)
    assert [transport.classifier_for(shot).step for shot in (1, 5)] == [0.4, 0.2]
    assert transport.classifier_for(5).power == 0.3


def test_the_inductive_form_of_ici_is_logistic_regression() -> None:
    method = create("ici", inference="inductive", C=3.0)
    assert not method.transductive
    support, labels, query = tasks(method)
    expected = Method(method.embedding, create_classifier("logistic", C=3.0)).classify(support, labels, query)
    assert torch.equal(method.classify(support, labels, query), expected)
    with pytest.raises(ValueError, match="inference must be"):
        create_method("ici", "conv4", inference="deductive")


@pytest.mark.parametrize(
    ("name", "options", "assumes"),
    [
        ("laplacianshot", {}, True),
        ("laplacianshot", {"rectify": False}, False),
        ("tim", {}, True),
        ("pt_map", {}, True),
        ("ici", {}, False),
        ("maml", {}, False),
        ("gnn_ft", {"statistics": "batch"}, False),
        ("gnn_ft", {"queries_per_graph": "way"}, True),
    ],
)
def test_what_they_say_of_themselves(name: str, options: dict[str, bool], assumes: bool) -> None:
    method = create_method(name, "conv4", **options)
    assert method.transductive
    assert method.assumes_balanced_queries == assumes
    assert not create_method("protonet", "conv4").assumes_balanced_queries
