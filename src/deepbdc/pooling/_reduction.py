"""The 1×1 reduction of channels with which second-order representations begin."""

from torch import nn


def reduction(channels: int, reduce_to: int | None) -> nn.Module:
    """A 1×1 convolution (no bias), batch norm and ReLU, ``(n, channels, h, w) -> (n, reduce_to, h, w)``.

    With ``reduce_to=None`` the map stays as it is.
    """
    if reduce_to is None:
        return nn.Identity()
    convolution = nn.Conv2d(channels, reduce_to, kernel_size=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(reduce_to), nn.ReLU(inplace=True))
