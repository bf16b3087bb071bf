"""How an image is prepared for a network: its size, its crop and its colours, and which views of it at test time."""

from dataclasses import dataclass, replace

from deepbdc.errors import UserError


@dataclass(frozen=True)
class Preprocessing:
    """The preparation that a network was made for. Backbones and weight files carry it, so that nobody has to guess.

    The shorter side is resized to ``resize`` (both sides, if ``squash``), the centre is cropped to ``input_size`` ×
    ``input_size``, and colours in [0, 1] become (colour - mean) / std.
    """

    input_size: int
    resize: int
    # Of miniImageNet: the released code uses them for all data sets.
    mean: tuple[float, float, float] = (0.472, 0.453, 0.410)
    std: tuple[float, float, float] = (0.277, 0.268, 0.285)
    interpolation: str = "bilinear"
    squash: bool = False

    def resized(self, size: int | None) -> "Preprocessing":
        """The same for images of ``size`` × ``size`` pixels, without a crop; None changes nothing."""
        return self if size is None else replace(self, input_size=size, resize=size)


AT_84 = Preprocessing(input_size=84, resize=92)
AT_224 = Preprocessing(input_size=224, resize=256)

CROPS = (1, 2, 5, 10)
"""How many views of an image there can be; see `AtTestTime.crops`."""


@dataclass(frozen=True)
class AtTestTime:
    """What is made of each image in an evaluation, besides the usual: the defaults change nothing."""

    crops: int = 1
    """Views of each image whose representations are averaged, see `deepbdc.data.views`. 1: the centre; 2: the centre
    and its mirror image; 5: the centre and the four corners; 10: these five and their mirror images."""
    crop_side: float = 0.875
    """Side of a view at a corner, as a share of the shorter side of the image."""
    centre: bool = False
    """Whether the mean representation of the training images is subtracted from each representation."""
    power: float = 1.0
    """Exponent of the entries of each representation, which keep their signs; before any mean is subtracted. 0.5, the
    signed square root, is usual for second-order pooling."""

    def __post_init__(self) -> None:
        if self.crops not in CROPS:
            raise UserError(f"crops must be one of {', '.join(map(str, CROPS))}, got {self.crops}")
        if not 0 < self.crop_side <= 1:
            raise UserError(f"crop_side must be above 0 and at most 1, got {self.crop_side}")
        if not 0 < self.power <= 1:
            raise UserError(f"power must be above 0 and at most 1, which changes nothing, got {self.power}")

    @property
    def has_corners(self) -> bool:
        """Whether there are views at the corners."""
        return self.crops >= 5

    @property
    def is_mirrored(self) -> bool:
        """Whether there are mirrored views."""
        return self.crops in (2, 10)

    def in_words(self) -> list[str]:
        """What is not as usual, in a few words each."""
        side = f" of side {self.crop_side:g}" if self.has_corners else ""
        views = [f"mean of {self.crops} views{side}"] if self.crops > 1 else []
        powers = [f"entries to the power {self.power:g}"] if self.power != 1 else []
        return [*views, *powers, *(["mean of the training images subtracted"] if self.centre else [])]


AS_USUAL = AtTestTime()
