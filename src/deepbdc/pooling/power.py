"""All entries of a map, with large ones made smaller."""

from torch import Tensor

from deepbdc.errors import UserError
from deepbdc.pooling.average import Flatten

_SMALLEST = 1e-12  # the gradient of a root is infinite at 0


class PowerFlatten(Flatten):
    """All entries of the map in one vector, max(x, 0)^power: ``(n, channels, h, w) -> (n, channels · h · w)``.

    Args:
        channels: Channels of the map.
        height: Rows of the map.
        width: Columns of the map.
        power: Exponent; smaller ones make large entries count less.
    """

    def __init__(self, channels: int, height: int, width: int, power: float = 0.5) -> None:
        super().__init__(channels, height, width)
        if not 0 < power <= 1:
            raise UserError(f"power must be above 0 and at most 1, got {power!r}")
        self.settings["power"] = self.power = power

    def represent(self, reduced: Tensor) -> Tensor:
        """The powers of all entries, in a row."""
        return reduced.clamp(min=_SMALLEST).pow(self.power).flatten(1)
