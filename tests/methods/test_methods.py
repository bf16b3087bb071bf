import pytest
import torch

import deepbdc
from deepbdc.methods.base import by_shot


def test_the_four_methods_are_listed() -> None:
    assert {"good_embed", "meta_deepbdc", "protonet", "stl_deepbdc"} <= set(deepbdc.list_methods())


@pytest.mark.parametrize("name", deepbdc.list_methods())
@pytest.mark.parametrize("shot", [1, 5])
def test_a_method_embeds_and_classifies(name: str, shot: int, generator: torch.Generator) -> None:
    method = deepbdc.create_method(name, backbone="conv4", shot=shot).eval()
    images = torch.rand(2 * shot + 3, 3, 32, 32, generator=generator)
    with torch.no_grad():
        representations = method.embed(images)
    assert len(representations) == len(images)
    labels = torch.arange(2).repeat_interleave(shot)
    scores = method.classify(representations[: 2 * shot], labels, representations[2 * shot :])
    assert scores.shape == (3, 2)
    assert scores.isfinite().all()


def test_protonet_scores_by_the_distance_to_the_mean(generator: torch.Generator) -> None:
    method = deepbdc.create_method("protonet", backbone="conv4", shot=2)
    support, query = torch.rand(4, 64, generator=generator), torch.rand(3, 64, generator=generator)
    scores = method.classify(support, torch.tensor([0, 0, 1, 1]), query)
    prototypes = [support[:2].mean(0), support[2:].mean(0)]
    expected = torch.tensor([[-float(((q - p) ** 2).sum()) for p in prototypes] for q in query])
    torch.testing.assert_close(scores, expected)


def test_meta_deepbdc_chooses_its_similarity_by_the_shots(generator: torch.Generator) -> None:
    method = deepbdc.create_method("meta_deepbdc", backbone="conv4", shot=1, reduce_to=8)
    assert method.embedding.out_features == 36
    support, query = torch.rand(2, 36, generator=generator), torch.rand(3, 36, generator=generator)
    torch.testing.assert_close(method.classify(support, torch.tensor([0, 1]), query), query @ support.T)
    five = method.for_shot(5)
    assert five.embedding is method.embedding
    expected = -(torch.cdist(query, support) ** 2)
    torch.testing.assert_close(five.classify(support, torch.tensor([0, 1]), query), expected, rtol=1e-3, atol=1e-4)
    always = deepbdc.create_method("meta_deepbdc", backbone="conv4", similarity="cosine")
    assert {always.for_shot(shot).classifier.similarity for shot in (1, 5)} == {"cosine"}  # type: ignore[union-attr]


def test_c_can_depend_on_the_shots() -> None:
    method = deepbdc.create_method("stl_deepbdc", backbone="conv4", shot=1, C={1: 0.1, 5: 2})
    assert method.classifier.C == 0.1  # type: ignore[union-attr]
    assert [method.for_shot(shot).classifier.C for shot in (1, 4, 5, 20)] == [0.1, 0.1, 2, 2]  # type: ignore[union-attr]
    assert by_shot({5: 2.0}, 1) == 2.0
    with pytest.raises(ValueError, match="empty"):
        by_shot({}, 1)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'protonet'"):
        deepbdc.create_method("protonets")
    with pytest.raises(TypeError, match="did you mean 'reduce_to'"):
        deepbdc.create_method("stl_deepbdc", backbone="conv4", reduce=3)
    with pytest.raises(ValueError, match="at least 1"):
        deepbdc.create_method("protonet", backbone="conv4", shot=0)
