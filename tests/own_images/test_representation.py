import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from deepbdc import BDCPool, FewShotClassifier, create_backbone
from deepbdc.errors import UserError
from deepbdc.own_images.networks import find_embedding
from deepbdc.own_images.representation import embedding_of


def test_both_are_the_networks_own_features_and_bdc_each_of_length_one() -> None:
    backbone = create_backbone("efficientnet_lite0", pretrained=False, head=True).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        features = backbone(images)
        own = backbone.head(features).mean(dim=(2, 3))
        bdc = BDCPool(320)(features)
        both = embedding_of(backbone, "both")(images)
        assert torch.allclose(both, torch.cat([normalize(own), normalize(bdc)], dim=1), atol=1e-6)
        assert torch.allclose(embedding_of(backbone, "own")(images), own, atol=1e-6)
    assert both.shape[1] == 1280 + 320 * 321 // 2


def test_a_network_without_a_head_has_the_average_of_its_map() -> None:
    network = nn.Conv2d(3, 6, 3, stride=2)
    embedding = find_embedding(network, None, 32, "cpu")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        features = network(images)
        expected = torch.cat([normalize(features.mean(dim=(2, 3))), normalize(BDCPool(6)(features))], dim=1)
        assert torch.allclose(embedding(images), expected, atol=1e-6)
    assert embedding.out_features == expected.shape[1]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UserError, match="both, own, bdc, average"):
        FewShotClassifier(pool="median").embed([])
