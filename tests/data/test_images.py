import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from deepbdc.data.images import BadImage, load_image
from deepbdc.errors import UserError

GRADIENT = np.linspace(0, 255, 16, dtype=np.uint8)[None, :].repeat(8, axis=0)  # 8 high, 16 wide, dark to bright


def save(tmp_path: Path, image: Image.Image, name: str, **options: object) -> Path:
    image.save(tmp_path / name, **options)  # type: ignore[arg-type]
    return tmp_path / name


def grey(mode: str) -> Callable[[], Image.Image]:
    return lambda: Image.fromarray(GRADIENT).convert(mode)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (grey("L"), "grey.png"),
        (grey("P"), "palette.png"),
        (grey("RGB"), "colour.bmp"),
        (grey("CMYK"), "cmyk.tif"),
        (grey("LA"), "alpha.png"),
        (lambda: Image.fromarray(GRADIENT.astype(np.uint16) * 257), "sixteen.png"),
        (lambda: Image.fromarray(GRADIENT.astype(np.int32) * 257), "thirty_two.tif"),
        (lambda: Image.fromarray(GRADIENT.astype(np.float32) / 255), "float.tif"),
        (lambda: Image.fromarray(GRADIENT.astype(np.float32)), "float255.tif"),
    ],
)
def test_all_modes_become_the_same_rgb(make: Callable[[], Image.Image], name: str, tmp_path: Path) -> None:
    image = load_image(save(tmp_path, make(), name))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image)[..., 0].astype(int) - GRADIENT).max() <= 2


def test_cmyk_jpeg(tmp_path: Path) -> None:
    image = load_image(save(tmp_path, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "red.jpg"))
    red, green, blue = image.getpixel((8, 8))  # type: ignore[misc]
    assert red > 200
    assert max(green, blue) < 60


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    half.putpixel((0, 0), (0, 0, 255, 255))
    image = load_image(save(tmp_path, half, "half.png"))
    assert image.getpixel((0, 0)) == (0, 0, 255)
    assert image.getpixel((3, 3)) == (255, 255, 255)
    palette = Image.fromarray(GRADIENT).convert("P")
    image = load_image(save(tmp_path, palette, "palette.gif", transparency=palette.getpixel((15, 0))))
    assert image.mode == "RGB"


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the image must be rotated by 90° clockwise
    path = save(tmp_path, Image.fromarray(GRADIENT), "turned.jpg", exif=exif, quality=95)
    image = load_image(path)
    assert image.size == (8, 16)
    assert np.asarray(image)[0].mean() < 20 < 235 < np.asarray(image)[-1].mean()


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert load_image(path).getpixel((0, 0)) == (255, 0, 0)


def test_bytes_are_decoded_too() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), "lime").save(buffer, "PNG")
    assert load_image(buffer.getvalue()).size == (3, 2)


@pytest.mark.parametrize("name", ["half.jpg", "half.png"])
def test_a_truncated_file_is_named(name: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path, Image.fromarray(noise), name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadImage, match=rf"{name}: not a readable image"):
        load_image(path)


@pytest.mark.parametrize("content", [b"hello", b"\xff\xd8\xff\xe0"])
def test_other_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.jpg").write_bytes(content)
    with pytest.raises(BadImage, match=r"odd\.jpg: not a readable image"):
        load_image(tmp_path / "odd.jpg")


def test_decompression_bombs_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("1", (20_000, 20_000)), "bomb.png")
    assert path.stat().st_size < 200_000
    with pytest.raises(BadImage, match=r"bomb\.png: refused"):
        load_image(path)
    small = save(tmp_path, Image.new("1", (40, 30)), "small.png")
    with pytest.raises(BadImage, match=r"small\.png: refused, 40×30 pixels are more than the limit of 1,000"):
        load_image(small, most_pixels=1000)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipes_and_devices_do_not_hang(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "odd.jpg")
    with pytest.raises(BadImage, match=r"odd\.jpg: a pipe or device, not a file"):
        load_image(tmp_path / "odd.jpg")


def test_empty_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "none.jpg").touch()
    for source in (tmp_path / "none.jpg", b""):
        with pytest.raises(BadImage, match=r"an empty file \(0 bytes\)"):
            load_image(source)


def huge_jpeg(width: int, height: int, progressive: bool = False) -> bytes:
    """A grey JPEG of that size, which is small as a file."""
    content = io.BytesIO()
    Image.new("L", (width, height), 90).save(content, "JPEG", progressive=progressive, quality=10)
    return content.getvalue()


def test_a_jpeg_of_200_megapixels_is_decoded_small() -> None:
    content = huge_jpeg(20_000, 10_000)
    assert load_image(content, at_least=224).size == (2500, 1250)
    with pytest.raises(BadImage, match=r"20000×10000 pixels are more .* set DEEPBDC_MEGAPIXELS=200 in the environment"):
        load_image(content)


def test_limits_can_be_raised_and_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    content = huge_jpeg(1200, 1000, progressive=True)
    assert load_image(content).size == (1200, 1000)
    monkeypatch.setenv("DEEPBDC_MEGAPIXELS", "1.1")
    for at_least in (None, 64):  # a progressive file is read as a whole
        with pytest.raises(BadImage, match="more than the limit of 1,100,000"):
            load_image(content, at_least=at_least)
    assert load_image(huge_jpeg(1200, 1000), at_least=64).size == (300, 250)
    with pytest.raises(BadImage, match="4000×3000 pixels"):  # more than ten times the limit
        load_image(huge_jpeg(4000, 3000), at_least=64)
    assert load_image(content, most_pixels=2_000_000).size == (1200, 1000)
    monkeypatch.setenv("DEEPBDC_MEGAPIXELS", "many")
    with pytest.raises(UserError, match="must be a number like 300, got 'many'"):
        load_image(content)


def test_pillow_keeps_its_own_limit() -> None:
    before = Image.MAX_IMAGE_PIXELS
    load_image(huge_jpeg(20_000, 10_000), at_least=224)
    assert before == Image.MAX_IMAGE_PIXELS


def test_heic(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "phone.heic"
    drawn = Image.fromarray(GRADIENT).convert("RGB").resize((64, 48))
    heif.from_pillow(drawn).save(path, quality=90)
    for source in (path, path.read_bytes()):
        image = load_image(source)
        assert (image.size, image.mode) == ((64, 48), "RGB")
        assert np.abs(np.asarray(image).astype(int) - np.asarray(drawn)).mean() < 8


def test_heic_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # importing it then fails
    monkeypatch.setattr(Image, "open", lambda *_, **__: (_ for _ in ()).throw(UnidentifiedImageError("unknown")))
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(BadImage, match=r"phone\.heic: a HEIC picture; .* pip install 'deepbdc\[heic\]'"):
        load_image(tmp_path / "phone.heic")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_image(tmp_path / "none.png")
