import hashlib
import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepbdc.data.dataset import ArrayDataset
from deepbdc.episodes import Episode, Episodes, sample_episodes


def dataset(classes: int = 8, images: int = 20, copies: int = 0) -> ArrayDataset:
    """All images differ, except that each class holds ``copies`` copies of its first image."""
    n = classes * images
    pixels = np.arange(n * 12, dtype=np.uint32).view(np.uint8).reshape(n, 4, 4, 3).copy()
    for start in range(0, n, images):
        pixels[start + 1 : start + 1 + copies] = pixels[start]
    names = [f"class {label}" for label in range(classes)]
    return ArrayDataset(pixels, np.repeat(np.arange(classes), images), names, "made", "test")


DATA = dataset()


def digest(episodes: Episodes) -> str:
    content = b"".join(getattr(e, n).astype("<i8").tobytes() for e in episodes for n in ("classes", "support", "query"))
    return hashlib.sha256(content).hexdigest()[:16]


def check(episode: Episode, way: int, shot: int, total_query: int) -> None:
    labels = DATA.labels.numpy()
    assert episode.shape == (way, way * shot, total_query)
    assert len(set(episode.classes.tolist())) == way
    chosen = [*episode.support.tolist(), *episode.query.tolist()]
    assert len(set(chosen)) == len(chosen), "an image is drawn twice"
    assert np.array_equal(episode.classes[episode.support_labels], labels[episode.support])
    assert np.array_equal(episode.classes[episode.query_labels], labels[episode.query])
    assert np.bincount(episode.support_labels, minlength=way).tolist() == [shot] * way


@given(way=st.integers(1, 8), shot=st.integers(1, 5), query=st.integers(1, 15), seed=st.integers(0, 2**40))
def test_episodes_have_the_requested_shape_and_correct_labels(way: int, shot: int, query: int, seed: int) -> None:
    for episode in sample_episodes(DATA, way, shot, query, count=3, seed=seed):
        check(episode, way, shot, way * query)
        assert np.bincount(episode.query_labels).tolist() == [query] * way


def test_episodes_are_the_same_on_every_machine() -> None:
    """Compared with a stored digest: if it changed, all users would silently get other episodes."""
    episode = sample_episodes(DATA, way=3, shot=1, query=2, count=2, seed=7)[1]
    again = sample_episodes(DATA, way=3, shot=1, query=2, count=9, seed=7)[1]
    assert digest(sample_episodes(DATA, way=5, shot=1, query=15, count=50, seed=0)) == "52bafce6a6250278"
    assert episode.support.tolist() == again.support.tolist(), "the first episodes do not depend on count"
    assert digest(sample_episodes(DATA, seed=1, count=5)) != digest(sample_episodes(DATA, seed=2, count=5))


def test_uniform_over_classes_and_images() -> None:
    episodes = sample_episodes(DATA, way=4, shot=1, query=3, count=3000, seed=0)
    classes = np.bincount(np.concatenate([e.classes for e in episodes]), minlength=8)
    assert np.abs(classes / classes.mean() - 1).max() < 0.1
    for name, each in (("support", 3000 * 4 / 160), ("query", 3000 * 12 / 160)):
        images = np.bincount(np.concatenate([getattr(e, name) for e in episodes]), minlength=160)
        assert np.abs(images / each - 1).max() < 0.6
        assert images.std() < 1.3 * np.sqrt(each)
    first = np.bincount([e.classes[0] for e in episodes], minlength=8)
    assert np.abs(first / 375 - 1).max() < 0.25, "each class is equally likely to get label 0"


@given(seed=st.integers(0, 2**31))
def test_variable_way_and_shot(seed: int) -> None:
    for episode in sample_episodes(DATA, way=(2, 6), shot=(1, 3), query=4, count=5, seed=seed):
        way = len(episode.classes)
        shot = len(episode.support) // way
        assert 2 <= way <= 6
        assert 1 <= shot <= 3
        check(episode, way, shot, 4 * way)


def test_all_ways_and_shots_of_a_range_occur() -> None:
    shapes = {e.shape[:2] for e in sample_episodes(DATA, way=(2, 3), shot=(1, 2), query=1, count=100)}
    assert shapes == {(2, 2), (2, 4), (3, 3), (3, 6)}


@given(seed=st.integers(0, 2**31), query=st.integers(1, 19))
def test_unbalanced_queries(seed: int, query: int) -> None:
    for episode in sample_episodes(DATA, way=4, shot=1, query=query, count=5, seed=seed, unbalanced=True):
        check(episode, 4, 1, 4 * query)


def test_unbalanced_queries_are_unbalanced() -> None:
    episodes = sample_episodes(DATA, way=4, query=4, count=50, unbalanced=True)
    shares = {tuple(np.bincount(e.query_labels, minlength=4)) for e in episodes}
    assert len(shares) > 30
    assert any(0 in share for share in shares)


def test_every_unbalanced_share_is_equally_likely() -> None:
    episodes = sample_episodes(DATA, way=3, shot=1, query=1, count=5000, unbalanced=True)
    shares = Counter(tuple(np.bincount(e.query_labels, minlength=3)) for e in episodes)
    assert len(shares) == 10  # ways to distribute 3 queries over 3 classes
    assert all(abs(count - 500) < 100 for count in shares.values())


@given(seed=st.integers(0, 2**31), query=st.integers(1, 19), dirichlet=st.floats(0.01, 100))
def test_unbalanced_queries_of_any_dirichlet_parameter(seed: int, query: int, dirichlet: float) -> None:
    options: dict[str, Any] = {"unbalanced": True, "dirichlet": dirichlet}
    for episode in sample_episodes(DATA, way=4, shot=1, query=query, count=3, seed=seed, **options):
        check(episode, 4, 1, 4 * query)


def test_dirichlet_1_is_the_default() -> None:
    one = sample_episodes(DATA, way=4, query=4, count=20, unbalanced=True, dirichlet=1)
    assert digest(one) == digest(sample_episodes(DATA, way=4, query=4, count=20, unbalanced=True))


@pytest.mark.parametrize("dirichlet", [0.5, 2.0, 1.0 + 1e-9])
def test_unbalanced_shares_follow_the_dirichlet_distribution(dirichlet: float) -> None:
    """The probability of each list of numbers, from the formula of the Dirichlet-multinomial distribution."""
    count, total, way = 6000, 3, 3
    episodes = sample_episodes(DATA, way=way, shot=1, query=1, count=count, unbalanced=True, dirichlet=dirichlet)
    found = Counter(tuple(np.bincount(e.query_labels, minlength=way).tolist()) for e in episodes)
    for share in itertools.product(range(total + 1), repeat=way):
        if sum(share) == total:
            expected = math.factorial(total) * math.gamma(way * dirichlet) / math.gamma(way * dirichlet + total)
            for number in share:
                expected *= math.gamma(dirichlet + number) / math.gamma(dirichlet) / math.factorial(number)
            assert abs(found[share] / count - expected) < 4 * math.sqrt(expected / count)


def test_a_larger_dirichlet_parameter_is_more_balanced() -> None:
    def spread(dirichlet: float) -> float:
        options: dict[str, Any] = {"unbalanced": True, "dirichlet": dirichlet}
        episodes = sample_episodes(dataset(images=200), way=4, query=10, count=300, **options)
        return float(np.mean([np.bincount(e.query_labels, minlength=4).std() for e in episodes]))

    spreads = [spread(dirichlet) for dirichlet in (0.2, 1, 2, 100)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 3 < spreads[0]


def test_episodes_of_an_earlier_version_have_no_dirichlet_parameter(tmp_path: Path) -> None:
    episodes = sample_episodes(DATA, way=3, query=2, count=3, unbalanced=True, dirichlet=2)
    episodes.save(tmp_path / "new.npz")
    assert Episodes.load(tmp_path / "new.npz").settings.dirichlet == 2
    content = dict(np.load(tmp_path / "new.npz"))
    header = json.loads(str(content["header"]))
    del header["settings"]["dirichlet"]
    np.savez(tmp_path / "old.npz", **(content | {"header": np.array(json.dumps(header))}))
    assert Episodes.load(tmp_path / "old.npz").settings.dirichlet == 1


def test_seeds_give_different_episodes_and_numpy_integers_are_accepted() -> None:
    seeds = [0, 1, 2**32, 2**63, 2**63 + 1, 2**64 - 1]
    assert len({digest(sample_episodes(DATA, count=3, seed=seed)) for seed in seeds}) == len(seeds)
    one = sample_episodes(DATA, np.int64(3), np.int32(1), count=np.int64(4))  # type: ignore[arg-type]
    assert digest(one) == digest(sample_episodes(DATA, 3, 1, count=4))
    with pytest.raises(TypeError, match="shot must be an integer or a range"):
        sample_episodes(DATA, shot=1.0)  # type: ignore[arg-type]


def test_distinct_content() -> None:
    with_copies = dataset(images=20, copies=10)
    pixels = with_copies.images

    def repeats(episodes: Episodes) -> int:
        return sum(
            len(e.support) + len(e.query) - len({pixels[i].tobytes() for i in (*e.support, *e.query)}) for e in episodes
        )

    assert repeats(sample_episodes(with_copies, query=5, count=20)) > 0
    assert repeats(sample_episodes(with_copies, query=5, count=20, distinct_content=True)) == 0
    with pytest.raises(ValueError, match="class 'class 0' has 10 images"):
        sample_episodes(with_copies, query=15, count=1, distinct_content=True)


@pytest.mark.parametrize("way", [5, (2, 6)])
def test_save_and_load(tmp_path: Path, way: int | tuple[int, int]) -> None:
    episodes = sample_episodes(DATA, way=way, shot=2, query=3, count=40, seed=5)
    episodes.save(tmp_path / "episodes.npz")
    again = Episodes.load(tmp_path / "episodes.npz")
    assert again.settings == episodes.settings
    assert again.data_fingerprint == episodes.data_fingerprint
    assert len(again) == 40
    for one, other in zip(episodes, again, strict=True):
        for name in ("classes", "support", "support_labels", "query", "query_labels"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
    again.check(DATA)
    with pytest.raises(ValueError, match="another data set"):
        again.check(dataset(classes=9))
    assert (tmp_path / "episodes.npz").stat().st_size < 20_000
    assert [file.name for file in tmp_path.iterdir()] == ["episodes.npz"]


def test_files_that_are_not_episodes_raise_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"noise")
    with pytest.raises(ValueError, match=r"x\.npz is damaged"):
        Episodes.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", images=np.zeros(3))
    with pytest.raises(ValueError, match=r"y\.npz is not a file of episodes"):
        Episodes.load(tmp_path / "y.npz")
    sample_episodes(DATA, count=5).save(tmp_path / "z.npz")
    whole = (tmp_path / "z.npz").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:300] + b"\x00\xff" + whole[302:]):
        (tmp_path / "z.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"z\.npz is damaged"):
            Episodes.load(tmp_path / "z.npz")
    with pytest.raises(FileNotFoundError):
        Episodes.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shot": 6}, r"class 'class 0' has 20 images, but 6 for support \+ 15 for query = 21 are needed"),
        ({"way": 9}, "9-way episodes need 9 classes, but the data set has 8"),
        ({"way": 0}, "way must be at least 1"),
        ({"shot": (3, 2)}, "shot must be at least 1, or a range"),
        ({"query": 0}, "query and count must be at least 1"),
        ({"count": 0}, "query and count must be at least 1"),
        ({"seed": -1}, "seed at least 0"),
        ({"unbalanced": True, "dirichlet": 0}, "dirichlet must be a positive number, got 0"),
        ({"unbalanced": True, "dirichlet": math.inf}, "dirichlet must be a positive number"),
        ({"dirichlet": 2}, "dirichlet=2 has no effect on balanced queries: set unbalanced as well"),
    ],
)
def test_wrong_settings_raise_clear_errors(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_episodes(DATA, **options)
