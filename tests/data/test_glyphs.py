"""The embedded data set: its classes, its images and its file."""

import re
import unicodedata
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFont

from deepbdc.data import glyph_characters, glyph_rendering, glyphs
from deepbdc.data.glyph_characters import Character

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


@pytest.fixture(scope="module")
def characters() -> list[Character]:
    return glyph_characters.choose_characters()


@pytest.fixture(scope="module")
def arrays(characters: list[Character]) -> Arrays:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "choose_characters", lambda: characters)  # takes seconds, so it runs once
        return glyphs.make_glyphs()


def letters(arrays: Arrays) -> list[str]:
    return [chr(int(name.split("_")[1], 16)) for name in arrays["class_names"]]


# ---- the classes


def test_standard_format(arrays: Arrays) -> None:
    names, labels = arrays["class_names"].tolist(), arrays["labels"]
    assert arrays["images"].shape == (40 * len(names), 32, 32, 3)
    assert arrays["images"].dtype == np.uint8
    assert Counter(labels.tolist()) == dict.fromkeys(range(len(names)), 40)
    assert names == sorted(set(names))
    assert all(re.fullmatch(r"[a-z]+_[0-9a-f]{4}_[a-z0-9_]+", name) for name in names)
    splits = Counter(arrays["class_split"].tolist())
    assert set(splits) == {"train", "val", "test"}
    assert splits["train"] >= 200
    assert splits["val"] >= 40
    assert splits["test"] >= 60


def test_scripts_of_the_splits_are_disjoint(arrays: Arrays) -> None:
    scripts: dict[str, set[str]] = {}
    for letter, split in zip(letters(arrays), arrays["class_split"], strict=True):
        assert unicodedata.category(letter).startswith("L")
        scripts.setdefault(split, set()).add(unicodedata.name(letter).split()[0])
    assert not scripts["train"] & scripts["test"]
    assert not scripts["train"] & scripts["val"]
    assert not scripts["val"] & scripts["test"]


@pytest.mark.parametrize("alike", ["AАΑ", "OoОоΟοՕօ೦ᴏ", "HНΗ", "cCсСϲ", "sSѕЅՏꜱ", "uսʋυ", "nոռп", "xXхХχ", "IlіІΙי"])
def test_at_most_one_of_well_known_look_alikes(arrays: Arrays, alike: str) -> None:
    assert len(set(alike) & set(letters(arrays))) <= 1


def test_no_two_classes_look_alike_in_any_two_faces(characters: list[Character]) -> None:
    """Checked with the correlations that numpy computes for all faces at once."""
    pictures = [glyph_characters.canonical_pictures(c.letter, c.faces) for c in characters]
    owner = np.repeat(np.arange(len(pictures)), [len(stack) for stack in pictures])
    correlations = np.corrcoef(np.concatenate(pictures))
    correlations[owner[:, None] == owner[None, :]] = 0
    assert correlations.max() <= glyph_characters.LIKENESS_LIMIT + 1e-9


def test_likeness_against_a_naive_twin() -> None:
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 136, (faces, 576)) for faces in (1, 3, 2, 4)]
    expected = [[max(np.corrcoef(p, q)[0, 1] for p in a for q in b) for b in pictures] for a in pictures]
    np.testing.assert_allclose(glyph_characters.likeness(pictures), expected, atol=1e-12)


def test_the_later_of_two_look_alikes_is_dropped() -> None:
    alike = np.eye(4)
    alike[0, 1] = alike[1, 0] = alike[1, 2] = alike[2, 1] = alike[0, 3] = alike[3, 0] = 0.9
    # 1 is like 0 and is dropped. 2 is like 1 only, so it stays. 3 is like 0 and is dropped.
    assert glyph_characters.without_look_alikes(alike, limit=0.8) == [0, 2]
    assert glyph_characters.without_look_alikes(alike, limit=0.95) == [0, 1, 2, 3]


def test_fonts_are_those_of_matplotlib_without_the_placeholders() -> None:
    names = [path.name for path in glyph_characters.font_files()]
    assert len(names) == len(set(names)) >= 12
    assert not [name for name in names if "LastResort" in name]


def test_every_face_draws_the_letter_and_no_placeholder(characters: list[Character]) -> None:
    for character in characters:
        assert len(character.faces) >= glyph_characters.FEWEST_FACES
        for face in character.faces:
            mask = np.asarray(glyph_characters.draw_mask(character.letter, face))
            missing = np.asarray(glyph_characters.draw_mask("\U000e0fff", face))
            assert mask.max() == 255, (character.name, face.name)
            assert mask.shape != missing.shape or (mask != missing).any(), (character.name, face.name)


def test_missing_fonts_are_a_readable_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install matplotlib from PyPI"):
        glyph_characters.font_files()


# ---- the images


def test_ink_and_background_always_differ(arrays: Arrays) -> None:
    luma = (arrays["images"] @ np.array([0.299, 0.587, 0.114])).reshape(len(arrays["images"]), -1)
    bright = luma > (luma.min(axis=1, keepdims=True) + luma.max(axis=1, keepdims=True)) / 2
    difference = (luma * bright).sum(1) / bright.sum(1) - (luma * ~bright).sum(1) / (~bright).sum(1)
    assert difference.min() > 60
    # No image is without ink or full of it; dark on light and light on dark both occur.
    rarer = np.minimum(bright.mean(axis=1), 1 - bright.mean(axis=1))
    assert rarer.min() > 0.01
    assert 0.4 < (bright.mean(axis=1) < 0.5).mean() < 0.6


def test_pictures_of_a_class_all_differ(arrays: Arrays) -> None:
    assert len(np.unique(arrays["images"].reshape(len(arrays["images"]), -1), axis=0)) == len(arrays["images"])


def test_letters_are_entirely_inside_the_image() -> None:
    generator = np.random.default_rng(3)
    sizes = generator.integers(10, 90, (300, 2)).astype(float)
    extents = []
    for size, placement in zip(sizes, glyph_rendering._placements(sizes, generator), strict=True):
        forward = np.linalg.inv(np.vstack([placement.reshape(2, 3), [0, 0, 1]]))
        corners = np.array([[x, y, 1] for x in (0, size[0]) for y in (0, size[1])])
        placed = (corners @ forward.T)[:, :2] / 2  # drawn at twice the size
        assert placed.min() > 1 - 1e-6
        assert placed.max() < 31 + 1e-6
        extents.append(np.ptp(placed, axis=0).max())
    assert 17 - 1e-6 < min(extents) < 18
    assert 28 < max(extents) < 29 + 1e-6


def test_the_ink_is_at_the_given_position() -> None:
    placements = glyph_rendering._placements(np.array([[40.0, 60.0]]), np.random.default_rng(5))
    drawn = np.asarray(glyph_rendering._placed(Image.new("L", (40, 60), 255), placements[0])) / 255
    forward = np.linalg.inv(np.vstack([placements[0].reshape(2, 3), [0, 0, 1]]))
    area = 40 * 60 * np.linalg.det(forward[:2, :2]) / 4
    assert drawn.sum() == pytest.approx(area, rel=0.03)
    rows, columns = np.mgrid[:32, :32] + 0.5
    centre = (forward @ [20, 30, 1])[:2] / 2
    np.testing.assert_allclose([np.average(columns, weights=drawn), np.average(rows, weights=drawn)], centre, atol=0.3)


def test_texture_stays_within_its_bounds() -> None:
    texture = glyph_rendering._texture(500, np.random.default_rng(0))
    assert np.abs(texture).max() <= glyph_rendering._TEXTURE
    assert np.ptp(texture, axis=(1, 2, 3)).max() > glyph_rendering._TEXTURE


def test_colours_have_the_luma_that_contrast_needs() -> None:
    ink, ground = glyph_rendering._colours(2000, np.random.default_rng(0))
    weights = np.array([0.299, 0.587, 0.114])
    assert np.abs(ink @ weights - ground @ weights).min() >= 90 - 1e-9
    assert min(ink.min(), ground.min()) >= -1e-9
    assert max(ink.max(), ground.max()) <= 255 + 1e-9


def test_the_seed_decides(characters: list[Character]) -> None:
    def draw(seed: int) -> Any:
        return glyph_rendering.draw_class(characters[7], 5, np.random.default_rng(seed))

    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).mean() > 0.5


def test_many_faces_are_used(characters: list[Character], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[ImageFont.FreeTypeFont] = []
    original = glyph_rendering.draw_mask
    monkeypatch.setattr(glyph_rendering, "draw_mask", lambda *a: (drawn.append(a[1].font), original(*a))[1])
    character = max(characters, key=lambda c: len(c.faces))
    glyph_rendering.draw_class(character, 200, np.random.default_rng(0))
    assert {id(font) for font in drawn} == {id(face.font) for face in character.faces}


def test_the_recorded_fingerprint(arrays: Arrays) -> None:
    if glyphs.made_with() != glyphs.MADE_WITH:
        pytest.skip("other versions than those recorded")
    assert glyphs.fingerprint(arrays) == glyphs.FINGERPRINT


@pytest.mark.parametrize("key", ["images", "labels", "class_names", "class_split"])
def test_fingerprint_sees_every_array(key: str) -> None:
    before, after = small_arrays(), small_arrays()
    assert glyphs.fingerprint(before) == glyphs.fingerprint(after)
    after[key] = after[key][::-1]
    assert glyphs.fingerprint(before) != glyphs.fingerprint(after)


@pytest.mark.parametrize("wrong", [{"images_per_class": 0}, {"seed": -1}])
def test_wrong_arguments(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        glyphs.make_glyphs(**wrong)


# ---- the file, with a small stand-in for the data


def small_arrays() -> Arrays:
    return {
        "images": np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8),
        "labels": np.repeat(np.arange(3), 2),
        "class_names": np.array(["arabic_0628_beh", "lao_0e82_kho", "latin_0041_a"]),
        "class_split": np.array(["test", "val", "train"]),
    }


class Maker:
    """Stand-in for `make_glyphs` that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, progress: bool = False) -> Arrays:
        self.calls += 1
        return small_arrays()


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    maker = Maker()
    monkeypatch.setattr(glyphs, "make_glyphs", maker)
    monkeypatch.setattr(glyphs, "FINGERPRINT", glyphs.fingerprint(small_arrays()))
    return maker


def test_the_file_is_drawn_once(tmp_path: Path, maker: Maker) -> None:
    root = tmp_path / "new" / "folder"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert glyphs.glyphs_file(root) == root / "glyphs.npz"
        assert glyphs.glyphs_file(root) == root / "glyphs.npz"
    assert maker.calls == 1
    assert [path.name for path in root.iterdir()] == ["glyphs.npz"]
    with np.load(root / "glyphs.npz", allow_pickle=False) as stored:
        for key, value in small_arrays().items():
            np.testing.assert_array_equal(stored[key], value)
        assert str(stored["fingerprint"]) == glyphs.FINGERPRINT


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite_with_noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def change_a_pixel(path: Path) -> None:
    """The archive stays valid, so that only the checksum reveals the change."""
    with np.load(path) as stored:
        content = dict(stored)
    content["images"][3, 4, 5, 0] ^= 1
    np.savez(path, **content)


def older_recipe(path: Path) -> None:
    with np.load(path) as stored:
        content = dict(stored)
    np.savez(path, **{**content, "made_with": np.array('{"recipe": "0"}')})


def leave_it_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut_in_half, "damaged"),
        (overwrite_with_noise, "damaged"),
        (flip_a_bit, "damaged"),
        (change_a_pixel, "checksum"),
        (leave_it_empty, "damaged"),
        (older_recipe, "older recipe"),
    ],
)
def test_a_damaged_or_old_file_is_drawn_again(tmp_path: Path, maker: Maker, harm: Any, words: str) -> None:
    path = glyphs.glyphs_file(tmp_path)
    harm(path)
    with pytest.warns(UserWarning, match=words):
        glyphs.glyphs_file(tmp_path)
    assert maker.calls == 2
    with np.load(path, allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["images"], small_arrays()["images"])


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(stream: Any, **arrays: Any) -> None:
        stream.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        glyphs.glyphs_file(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_for_unrecorded_images(tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "FINGERPRINT", "0" * 64)
    monkeypatch.setattr(glyphs, "MADE_WITH", {**glyphs.made_with(), "pillow": "1.2.3"})
    with pytest.warns(UserWarning, match=r"differ from the recorded ones .* instead of 1\.2\.3"):
        glyphs.glyphs_file(tmp_path)


def test_contact_sheet(tmp_path: Path, arrays: Arrays) -> None:
    path = glyphs.contact_sheet(arrays, tmp_path / "docs" / "sheet.png", columns=5)
    with Image.open(path) as opened:
        sheet = np.asarray(opened)
    assert sheet.shape == (18 * 34, 290 + 5 * 34, 3)
    first = int(np.flatnonzero(arrays["class_split"] == "train")[0])
    np.testing.assert_array_equal(sheet[1:33, 290 + 34 : 290 + 66], arrays["images"][40 * first + 1])


def test_the_title_in_the_list_has_the_right_counts(arrays: Arrays) -> None:
    from deepbdc.data import benchmarks

    title = benchmarks.get("glyphs").title
    parts = arrays["class_split"].tolist()
    for split, words in (("train", "in train"), ("val", "in val"), ("test", "in test")):
        assert re.search(rf"\b{parts.count(split)} (classes )?of [^0-9]*{words}", title)
