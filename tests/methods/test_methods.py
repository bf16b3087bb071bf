import pytest
import torch

import deepbdc
from deepbdc.methods.base import Method, by_shot
from deepbdc.pooling import AveragePool


def test_the_methods_are_listed() -> None:
    assert {"good_embed", "meta_deepbdc", "protonet", "stl_deepbdc"} <= set(deepbdc.list_methods())
    assert {"meta_baseline", "dn4", "maml", "anil"} <= set(deepbdc.list_methods())


def test_protonet_scores_by_the_distance_to_the_mean(generator: torch.Generator) -> None:
    method = deepbdc.create_method("protonet", backbone="conv4", shot=2)
    support, query = torch.rand(4, 64, generator=generator), torch.rand(3, 64, generator=generator)
    scores = method.classify(support, torch.tensor([0, 0, 1, 1]), query)
    prototypes = [support[:2].mean(0), support[2:].mean(0)]
    expected = torch.tensor([[-float(((q - p) ** 2).sum()) for p in prototypes] for q in query])
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("made_for", [1, 5])
def test_meta_deepbdc_chooses_its_similarity_by_the_shots_of_the_task(
    made_for: int, generator: torch.Generator
) -> None:
    """Whatever number of shots it was created for, and in whatever order tasks come."""
    method = deepbdc.create_method("meta_deepbdc", backbone="conv4", shot=made_for, reduce_to=8)
    assert method.embedding.out_features == 36
    support, query = torch.rand(10, 36, generator=generator), torch.rand(3, 36, generator=generator)
    five, one = torch.arange(2).repeat_interleave(5), torch.tensor([0, 1])
    means = torch.stack([support[:5].mean(0), support[5:].mean(0)])
    distances = -(torch.cdist(query, means) ** 2)
    for _ in range(2):  # five shots, one shot, and again
        torch.testing.assert_close(method.classify(support, five, query), distances, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(method.classify(support[:2], one, query), query @ support[:2].T)
    always = deepbdc.create_method("meta_deepbdc", backbone="conv4", similarity="cosine")
    assert {always.classifier_for(shot).similarity for shot in (1, 5)} == {"cosine"}


def test_c_can_depend_on_the_shots(generator: torch.Generator) -> None:
    method = deepbdc.create_method("stl_deepbdc", backbone="conv4", shot=1, C={1: 0.1, 5: 2})
    assert method.classifier.C == 0.1
    assert [method.classifier_for(shot).C for shot in (1, 4, 5, 20)] == [0.1, 0.1, 2, 2]
    assert by_shot({5: 2.0}, 1) == 2.0
    with pytest.raises(ValueError, match="empty"):
        by_shot({}, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_are_scored_in_full_precision_under_autocast(dtype: torch.dtype, generator: torch.Generator) -> None:
    """Products of half-precision numbers change answers, and overflow in float16."""
    method = deepbdc.create_method("protonet", backbone="conv4")
    support = 300 * torch.rand(5, 64, generator=generator)
    query = support.repeat_interleave(4, dim=0) + 30 * torch.randn(20, 64, generator=generator)
    plain = method.classify(support, torch.arange(5), query)
    with torch.autocast("cpu", dtype=dtype):
        mixed = method.classify(support, torch.arange(5), query)
        assert (query @ support.T).dtype == dtype  # autocast is on
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain)


def test_the_meta_stage_scores_in_full_precision_under_autocast(generator: torch.Generator) -> None:
    from deepbdc.stages import TrainingEpisode

    class Answers(Method):
        def embed(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)

        def classify(self, *arguments: torch.Tensor) -> torch.Tensor:
            self.scores = super().classify(*arguments)
            return self.scores

    embedding = deepbdc.Embedding(deepbdc.create_backbone("conv4"), AveragePool(64))
    method = Answers(embedding, deepbdc.create_classifier("prototype"))
    images = 100 * torch.rand(25, 3, 4, 4, generator=generator)
    episode = TrainingEpisode(images, torch.arange(5), torch.arange(20) % 5, torch.arange(5))
    expected = method.episode_loss(episode).value
    plain = method.scores
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = method.episode_loss(episode).value
    assert torch.equal(method.scores, plain)
    torch.testing.assert_close(value.float(), expected, rtol=1e-2, atol=1e-2)


def test_half_precision_representations_are_accepted(generator: torch.Generator) -> None:
    method = deepbdc.create_method("protonet", backbone="conv4")
    support = torch.rand(4, 64, generator=generator).bfloat16()
    assert method.classify(support, torch.arange(4), support).dtype == torch.float32


def test_parameter_groups_hold_every_parameter_once() -> None:
    for name in deepbdc.list_methods():
        method = deepbdc.create_method(name, backbone="conv4")
        grouped = [id(value) for values in method.parameter_groups().values() for value in values]
        assert sorted(grouped) == sorted(id(value) for value in method.parameters())
    assert [id(value) for value in deepbdc.create_method("stl_deepbdc").parameter_groups()["t"]]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'protonet'"):
        deepbdc.create_method("protonets")
    with pytest.raises(TypeError, match="did you mean 'reduce_to'"):
        deepbdc.create_method("stl_deepbdc", backbone="conv4", reduce=3)
    with pytest.raises(ValueError, match="at least 1"):
        deepbdc.create_method("protonet", backbone="conv4", shot=0)
    with pytest.raises(ValueError, match="batch_norm must be"):
        deepbdc.create_method("maml", backbone="conv4", batch_norm="none")
