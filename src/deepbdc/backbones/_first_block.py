"""The first block of a Conv4 in training, computed fast: 3×3 convolution, batch norm, 2×2 max-pooling, ReLU.

At 84 pixels, the output of the first convolution is as large as all other activations together, and reading and writing
it several times takes longer than the arithmetic. `first_block` computes the same values and gradients, but for
rounding, without ever storing it:

- The batch passes through in slices that stay in the processor's cache.
- Max-pooling comes before batch norm. Batch norm multiplies a channel by γ/σ, so the largest normalised value belongs
  to the largest value before it, or to the smallest if γ < 0. There, the weights of the convolution change their sign.
- A convolution of few channels is a product of its weights with the 3×3 patches of the images. So its mean and variance
  over the batch follow from the mean m and the covariance C of the patches: w·m + b, and wᵀ C w.
- Batch norm's gradient is a (g - Σg/N - ŷ Σgŷ/N) with a = |γ|/σ, where g has the gradient of each pooled value at the
  place of the largest one, and ŷ is the normalised output of the convolution. The gradient of the weights is the
  product of this with the patches. The last two terms of it need only m and C again.

The formula in ordinary operations, `first_block_formula`, is the definition. It is used for second derivatives.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

_ENTRIES = 2**20
"""Numbers in a slice of the convolution's output."""
_WORTHWHILE = 2**22
"""A convolution with more numbers in its output than this does not fit into the cache."""


def first_block_formula(x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """The definition: ``(n, c, h, w) -> (n, k, h / 2, w / 2)``."""
    y = functional.conv2d(x, weight, bias, padding=1)
    normalised = functional.batch_norm(y, None, None, gamma, beta, training=True, eps=eps)
    return functional.max_pool2d(normalised, 2).relu()


def run_first_block(block: nn.Sequential, images: Tensor) -> Tensor:
    """The output of a block (convolution, batch norm, max-pooling, ReLU), computed fast where that is possible."""
    if not _is_possible(block, images):
        out: Tensor = block(images)
        return out
    convolution, norm = cast(nn.Conv2d, block[0]), cast(nn.BatchNorm2d, block[1])
    out, mean, variance = _FirstBlock.apply(  # type: ignore[no-untyped-call]
        images, convolution.weight, convolution.bias, norm.weight, norm.bias, norm.eps
    )
    with torch.no_grad():
        _update(norm, mean, variance, images.numel() // images.shape[1])
    return out


def _is_possible(block: nn.Sequential, images: Tensor) -> bool:
    """Whether this is ordinary training on a CPU with a batch that does not fit into the cache."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting() or not torch.is_grad_enabled():
        return False
    convolution, norm, pool = cast(nn.Conv2d, block[0]), block[1], block[2]
    same_kind = images.device.type == "cpu" and images.dtype == convolution.weight.dtype
    even = images.shape[2] % 2 == 0 and images.shape[3] % 2 == 0
    large = images.numel() // images.shape[1] * convolution.out_channels > _WORTHWHILE
    if not (same_kind and even and large) or images.requires_grad or torch.is_autocast_enabled("cpu"):
        return False
    ordinary = type(norm) is nn.BatchNorm2d and isinstance(pool, nn.MaxPool2d)  # not SyncBatchNorm
    return ordinary and norm.training and norm.running_mean is not None and not _has_hooks(block)


def _has_hooks(block: nn.Sequential) -> bool:
    """Whether somebody listens to the values between the layers, which are not there."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in block.modules() for kind in kinds)


def _update(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as batch norm does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_((variance * count / (count - 1)).to(norm.running_var.dtype), share)


class _FirstBlock(torch.autograd.Function):
    """From images and the parameters of the block to its output, and the mean and variance of the convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, _, h, w = x.shape
        channels = len(weight)
        sign = torch.where(gamma < 0, -1.0, 1.0).to(weight.dtype)
        flat = weight.permute(0, 2, 3, 1).reshape(channels, -1) * sign[:, None]  # (k, 9c)
        shape = (n, h // 2, w // 2, channels)
        largest = x.new_empty(shape)
        places = [torch.empty(shape, dtype=torch.bool) for _ in range(3)]
        patches = _Patches(flat.shape[1])
        for rows in _slices(n, h * w * channels):
            these = _patches(x[rows])
            y = torch.addmm(bias * sign, these, flat.t()).view(-1, h, w, channels)
            _pool(y, largest[rows], [place[rows] for place in places])
            patches.add(these)
        mean, covariance = patches.statistics()
        product = flat.double() @ covariance
        y_mean, y_variance = flat.double() @ mean + (bias * sign).double(), (product * flat.double()).sum(dim=1)
        inverse = (y_variance + eps).rsqrt()
        factor = gamma.abs() * inverse.to(gamma.dtype)
        out = torch.addcmul(beta - factor * y_mean.to(beta.dtype), largest, factor).relu_()
        ctx.eps = eps
        ctx.save_for_backward(
            x, weight, bias, gamma, beta, largest, out, sign, mean, product, y_mean, inverse, factor, *places
        )
        statistics = y_mean * sign, y_variance
        ctx.mark_non_differentiable(*statistics)
        return out.permute(0, 3, 1, 2), *statistics

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors[:5]
        if torch.is_grad_enabled():
            # The gradient will be differentiated again: autograd computes it from the formula, so that it can be.
            wanted = [value for value in parameters if value.requires_grad]
            weight, bias, gamma, beta = parameters
            value = first_block_formula(x, weight, bias, gamma, beta, ctx.eps)
            found = iter(torch.autograd.grad(value, wanted, gradient, create_graph=True))
            return None, *(next(found) if value.requires_grad else None for value in parameters), None
        return None, *_gradients(gradient.permute(0, 2, 3, 1), x, *ctx.saved_tensors[5:]), None


def _gradients(
    gradient: Tensor,
    x: Tensor,
    largest: Tensor,
    out: Tensor,
    sign: Tensor,
    mean: Tensor,
    product: Tensor,
    y_mean: Tensor,
    inverse: Tensor,
    factor: Tensor,
    *places: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients with respect to weight, bias, γ and β, from that of the output ``(n, h / 2, w / 2, k)``."""
    n, c, h, w = x.shape
    channels = len(sign)
    of_sum = torch.zeros(channels, dtype=torch.float64)  # Σg
    of_values = torch.zeros(channels, dtype=torch.float64)  # Σ g y
    with_patches = torch.zeros(channels, c, 3, 3, dtype=torch.float64)
    for rows in _slices(n, h * w * channels):
        g = torch.where(out[rows] > 0, gradient[rows], 0)
        of_sum += g.sum(dim=(0, 1, 2))
        of_values += (g * largest[rows]).sum(dim=(0, 1, 2))
        spread = _unpool(g, [place[rows] for place in places])
        with_patches += conv2d_weight(x[rows], list(with_patches.shape), spread.permute(0, 3, 1, 2), padding=1)
    of_normalised = (of_values - y_mean * of_sum) * inverse  # Σ g ŷ
    of_others = of_sum[:, None] * mean + (inverse * of_normalised)[:, None] * product  # (k, 9c)
    of_weight = with_patches - of_others.view(channels, 3, 3, c).permute(0, 3, 1, 2)
    of_weight = (of_weight * (factor * sign).double()[:, None, None, None]).to(x.dtype)
    of_gamma = (of_normalised * sign).to(x.dtype)
    # Batch norm subtracts the bias again.
    return of_weight, torch.zeros_like(factor), of_gamma, of_sum.to(x.dtype)


def _slices(n: int, entries: int) -> Iterator[slice]:
    """Slices of n images; the output of the convolution has ``entries`` numbers for each image."""
    size = max(1, _ENTRIES // entries)
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _patches(x: Tensor) -> Tensor:
    """The 3×3 patches around all positions, ``(n, c, h, w) -> (n h w, 9 c)``, in the order row, column, channel."""
    n, c, h, w = x.shape
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()
    image, row, column, channel = padded.stride()
    windows = padded.as_strided((n, h, w, 3, 3, c), (image, row, column, row, column, channel))
    return windows.reshape(n * h * w, 9 * c)


class _Patches:
    """Mean and covariance of patches that come in slices.

    The mean of the first slice is subtracted before products are summed, so that few digits are lost.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.origin: Tensor | None = None
        self.total = torch.zeros(size, dtype=torch.float64)
        self.products = torch.zeros(size, size, dtype=torch.float64)

    def add(self, patches: Tensor) -> None:
        """Add patches ``(p, size)``, which are overwritten."""
        if self.origin is None:
            self.origin = patches.mean(dim=0)
        patches -= self.origin
        self.count += len(patches)
        self.total += patches.sum(dim=0)
        self.products += patches.t() @ patches

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean ``(size,)`` and covariance ``(size, size)`` in double precision."""
        assert self.origin is not None
        shift = self.total / self.count
        return self.origin.double() + shift, self.products / self.count - torch.outer(shift, shift)


def _corners(y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four values of each 2×2 square, row by row: views ``(n, h / 2, w / 2, k)`` of ``(n, h, w, k)``."""
    return y[:, 0::2, 0::2], y[:, 0::2, 1::2], y[:, 1::2, 0::2], y[:, 1::2, 1::2]


def _pool(y: Tensor, largest: Tensor, places: list[Tensor]) -> None:
    """Write the largest value of each square, and where it is: the first one if there are several, as in torch.

    The places say whether the right value is larger in the upper row, in the lower row, and whether the lower row is.
    """
    upper_left, upper_right, lower_left, lower_right = _corners(y)
    upper, lower = torch.maximum(upper_left, upper_right), torch.maximum(lower_left, lower_right)
    torch.gt(upper_right, upper_left, out=places[0])
    torch.gt(lower_right, lower_left, out=places[1])
    torch.gt(lower, upper, out=places[2])
    torch.maximum(upper, lower, out=largest)


def _unpool(values: Tensor, places: list[Tensor]) -> Tensor:
    """Put each value at its place, and 0 elsewhere: ``(n, h / 2, w / 2, k) -> (n, h, w, k)``."""
    n, h, w, channels = values.shape
    spread = values.new_empty(n, 2 * h, 2 * w, channels)
    upper_left, upper_right, lower_left, lower_right = _corners(spread)
    lower = values * places[2]
    upper = values - lower
    torch.mul(upper, places[0], out=upper_right)
    torch.sub(upper, upper_right, out=upper_left)
    torch.mul(lower, places[1], out=lower_right)
    torch.sub(lower, lower_right, out=lower_left)
    return spread
