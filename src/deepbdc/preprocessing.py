"""How an image is prepared for a network: its size, its crop and its colours."""

from dataclasses import dataclass, replace


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
