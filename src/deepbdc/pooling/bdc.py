"""The BDC pooling layer: an image is described by the dependence between its feature channels."""

from typing import Literal

import torch
from torch import Tensor, nn

from deepbdc.errors import UserError
from deepbdc.pooling._bdc_operator import Output, bdc_pool, bdc_pool_formula
from deepbdc.pooling.base import ReducedPool, in_full_precision

Observations = Literal["channels", "positions"]


class BDCPool(ReducedPool):
    """Brownian distance covariance pooling, ``(n, channels, h, w) -> (n, d(d+1)/2)``.

    Xie et al., "Joint Distribution Matters: Deep Brownian Distance Covariance for Few-Shot Classification", CVPR 2022,
    Sec. 3.2. Each of the d channels is an observation of a vector of p = h·w positions; the layer gives the BDC matrix
    of these observations:

        D_kl = sqrt(exp(t) / (2p) · ‖x_k - x_l‖² + eps),      A = D, double-centred,

    with one learnable number ``t``, starting at 0. It stands for the paper's τ, inside the root as in the released
    code, but relative to the size of the map, which the layer therefore need not be told.

    A map may also be given as the tokens of a vision transformer, ``(n, tokens, channels)``, without its class token:
    a token is a position.

    Recipes can train ``t`` at a rate of its own, as the parameter group ``t``.

    Args:
        channels: Channels of the incoming map.
        reduce_to: Channels d after a 1×1 convolution (no bias), batch norm and ReLU. None leaves the reduction out, so
            that d = ``channels`` and the map is used as it is. ``reduce_to=channels`` is a convolution that keeps the
            width: the paper describes that, the released code then leaves the reduction out.
        observations: What is observed: ``"channels"``, or ``"positions"`` for the paper's hw×hw variant, where each of
            the h·w positions is an observation of a p = d vector.
        output: ``"triangle"``: the upper triangle with its diagonal, row by row (the paper's vector); ``"weighted"``:
            the same with √2 off the diagonal, so that inner products are tr(AᵀB); ``"matrix"``: ``(n, d, d)``.
        eps: Keeps the gradient of the root finite where observations are equal.

    Distances are computed in float32 (or float64, if the map is) also under autocast and for half-precision maps. The
    gradient can itself be differentiated.

    >>> pool = BDCPool(64, reduce_to=16)
    >>> pool(torch.rand(2, 64, 5, 5)).shape, pool.out_features
    (torch.Size([2, 136]), 136)
    """

    named_parameter_groups = {"t": ("t",)}  # noqa: RUF012

    def __init__(
        self,
        channels: int,
        reduce_to: int | None = None,
        *,
        observations: Observations = "channels",
        output: Output = "triangle",
        eps: float = 1e-5,
    ) -> None:
        super().__init__(channels, reduce_to, observations=observations, output=output, eps=eps)
        if observations not in ("channels", "positions"):
            raise UserError(f"observations must be 'channels' or 'positions', got {observations!r}")
        if observations == "channels" and self.dimensions < 2:
            raise UserError("BDC compares channels with each other: it needs at least 2, got 1")
        if output not in ("triangle", "weighted", "matrix"):
            raise UserError(f"output must be 'triangle', 'weighted' or 'matrix', got {output!r}")
        if not eps > 0:
            raise UserError(f"eps must be positive, got {eps}")
        self.observations = observations
        self.depends_on_map_size = observations == "positions"
        self.output: Output = output
        self.eps = eps
        self.t = nn.Parameter(torch.zeros(()))

    @property
    def out_features(self) -> int:  # type: ignore[override]
        """Numbers in the representation of an image."""
        if self.observations == "positions":
            raise UserError(
                "with observations='positions' the representation grows with the map: "
                "use out_features_for(height, width)"
            )
        return self._features(self.dimensions)

    def out_features_for(self, height: int, width: int) -> int:
        """Numbers in the representation of an image whose feature map is ``height`` × ``width``."""
        return self._features(self.dimensions if self.observations == "channels" else height * width)

    def _features(self, m: int) -> int:
        return m * m if self.output == "matrix" else m * (m + 1) // 2

    def reduce(self, features: Tensor) -> Tensor:
        """The first half: maps ``(n, channels, h, w) -> (n, d, h, w)``."""
        reduced = super().reduce(features)
        if self.observations == "positions" and reduced.shape[2] * reduced.shape[3] < 2:
            raise UserError(f"the feature map has too few positions for BDC: shape {tuple(features.shape)}")
        return reduced

    def represent(self, reduced: Tensor) -> Tensor:
        """The second half: BDC representations of reduced maps ``(n, d, h, w)``."""
        return in_full_precision(self._matrices, reduced)

    def _matrices(self, maps: Tensor) -> Tensor:
        features = maps.flatten(2)
        x = features if self.observations == "channels" else features.transpose(1, 2)
        pool = bdc_pool_formula if torch.compiler.is_exporting() else bdc_pool
        return pool(x, self.t.to(x.dtype), self.output, self.eps)
