"""Softmax, ReLU, linear and random-feature attention over the last frames."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.window import WindowCore, check_heads, mix_heads, split_heads

LEAST_KERNEL = 1e-30
"""Smallest value of a linear kernel. A query whose kernel is 0 for every key would have no weights."""


class SlopedAttention(WindowCore):
    """Base of attention cores over a window of frames.

    Each frame t mixes the frames s of its window.

    Per head, with q, k and v affine in the frame:

        y_t = W_o [sum_s p_ts v_s of every head] + b_o

    A subclass defines how the weights p_ts follow from q_t, k_s and the distance t - s. Contents do not distinguish old
    frames from new ones, so a position is needed. Ours comes from ALiBi (Press et al. 2022): a head subtracts
    slope (t - s) from its scores. It counts frames back from the query, as streaming requires. Unlike there the slope
    of each head is learned, from the initial 2^(-8 h / H), h = 1..H.

    State: the inputs of the last frames, see WindowCore.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` is less than 1.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 32) -> None:
        super().__init__(input_size, output_size, window)
        check_heads("output_size", output_size, num_heads)
        self.num_heads = num_heads
        self.query = nn.Linear(input_size, output_size)
        self.kv = nn.Linear(input_size, 2 * output_size)  # key, value
        self.slope = nn.Parameter(torch.logspace(-8 / num_heads, -8, num_heads, base=2.0))
        self.output = nn.Linear(output_size, output_size)

    @abstractmethod
    def mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
        """Mix the values of the window.

        Args:
            q: Queries, (B, H, T, D).
            k: Keys, (B, H, S, D).
            v: Values, (B, H, S, D).
            bias: -slope (t - s), (H, T, S).
            allowed: (B, T, S) bool, whether the query t sees the frame s.

        Returns:
            (B, T, H D).
        """

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        length, frames = age.shape[1:]
        q = split_heads(self.query(x[:, frames - length :]), self.num_heads)  # (B, H, T, D)
        k, v = (split_heads(side, self.num_heads) for side in self.kv(x).chunk(2, dim=2))  # (B, H, S, D)
        at = torch.arange(frames, device=x.device)
        behind = at[frames - length :, None] - at  # (T, S) frames
        return self.output(self.mix(q, k, v, -self.slope[:, None, None] * behind, allowed))  # (B, T, H D)


class KernelAttention(SlopedAttention):
    """Base of attention with positive weights that sum to 1.

    p_ts ~ kernel(q_t, k_s) exp(-slope (t - s)).

    A subclass defines the kernel. As a factor, the position goes with every kernel, which a sinusoid added to the keys
    does not. The sums run over all pairs in the window: with tens of frames that is faster than the prefix sums for
    which linear kernels are known.
    """

    @abstractmethod
    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Return ln kernel (B, H, T, S) of q and k.

        q is (B, H, T, D), k is (B, H, S, D). A constant of each query is left out.
        """

    def mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
        return mix_heads(self.log_kernel(q, k) + bias, allowed, v)


class SoftmaxAttention(KernelAttention):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, sec. 3.2): kernel(q, k) = exp(q.k / sqrt(D)).

    With one head it is the single-head attention of the same section, and an output map.

    State, arguments and errors: see `SlopedAttention`.
    """

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(2, 3) / math.sqrt(q.shape[3])


class ReLUAttention(SlopedAttention):
    """Rectified linear attention (Zhang, Titov & Sennrich 2021).

    The source is "Sparse Attention with Linear Units".

        p_ts = relu(q_t.k_s / sqrt(D) - slope (t - s)),    y_t = W_o rms_norm([sum_s p_ts v_s of every head]) + b_o

    This is the baseline that the NAC paper calls Linear Attention (appendix D.1): attention with a ReLU instead of the
    softmax. It is not the linear attention of `LinearAttention`. The weights are sparse and do not sum to 1. A head
    whose scores are all negative contributes 0. If all heads do, y = b_o.

    The NAC paper names no normalization. Dividing by the sum of the weights would be 0 / 0 where a head is off. The
    normalization follows the cited source: one RMSNorm with a gain over the concatenated heads. The source's
    optional gate, sigmoid(w z), is left out. The slope is inside the ReLU, as it is inside the softmax of
    `SoftmaxAttention`. A large slope therefore cuts old frames off.

    State, arguments and errors: see `SlopedAttention`.
    """

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 32) -> None:
        super().__init__(input_size, output_size, num_heads=num_heads, window=window)
        self.norm = nn.RMSNorm(output_size, eps=1e-5)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, allowed: Tensor) -> Tensor:
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias  # (B, H, T, S)
        p = scores.relu().masked_fill(~allowed.unsqueeze(1), 0.0)
        y = (p.to(v.dtype) @ v).transpose(1, 2).flatten(2)  # (B, T, H D)
        return self.norm(y.to(self.norm.weight.dtype))


class LinearAttention(KernelAttention):
    """Linear attention (Katharopoulos et al. 2020, sec. 3.2): kernel(q, k) = f(q).f(k), f = elu + 1 per element.

    State, arguments and errors: see `SlopedAttention`.
    """

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        f_q, f_k = (x.relu() + torch.exp(-F.relu(-x)) for x in (q, k))  # elu(x) + 1 rounds to 0 below -17
        kernel = f_q @ f_k.transpose(2, 3)  # rounds to 0 where q and k are about -50
        return kernel.clamp(min=max(LEAST_KERNEL, torch.finfo(kernel.dtype).tiny)).log()


class Performer(KernelAttention):
    """Softmax attention by positive orthogonal random features, FAVOR+ (Choromanski et al. 2021, sec. 2.3 and 2.4).

        kernel(q, k) = f(q').f(k') ~ exp(q.k / sqrt(D)),    x' = x / D^(1/4),    f(x) = exp(w_i.x - |x|^2 / 2), i = 1..m

    The m = `num_features` directions w_i are the same for all heads. They are drawn once from `seed` and stay: a
    buffer, never drawn again in training. In blocks of D they are orthogonal. Each token's features are scaled by their
    largest (the scale of a key is put back outside) and kept above 1e-6, against overflow and 0 / 0.

    State: the inputs of the last frames, see WindowCore.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.
        num_features: Number of random features, m.
        seed: Seed of their directions.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` or `num_features` is less than 1.
    """

    features: Tensor

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        num_heads: int = 4,
        window: int = 32,
        num_features: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(input_size, output_size, num_heads=num_heads, window=window)
        if num_features < 1:
            raise ValueError(f"num_features: must be at least 1, got {num_features}.")
        self.register_buffer("features", orthogonal_gaussians(num_features, output_size // num_heads, seed))

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        f_q, _ = self._project(q)  # a factor for each query has no effect
        f_k, log_scale = self._project(k)
        return (f_q @ f_k.transpose(2, 3)).log() + log_scale.transpose(2, 3)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(x') / scale (B, H, T, m) and the log scale (B, H, T, 1) of x (B, H, T, D)."""
        x = x / x.shape[3] ** 0.25
        exponent = x @ self.features.t() - x.square().sum(dim=3, keepdim=True) / 2  # (B, H, T, m)
        log_scale = exponent.detach().amax(dim=3, keepdim=True)
        return torch.exp(exponent - log_scale) + 1e-6, log_scale


def orthogonal_gaussians(count: int, size: int, seed: int) -> Tensor:
    """Draw normal vectors (count, size), orthogonal within blocks of `size`."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randn(-(-count // size), size, size, generator=generator)
    q, r = torch.linalg.qr(blocks)
    signs = r.diagonal(dim1=1, dim2=2).sign()  # QR chooses them; with these all rotations are equally likely
    directions = (q * signs.unsqueeze(1)).flatten(0, 1)  # (>= count, size), orthonormal in blocks
    lengths = torch.randn(directions.shape, generator=generator).norm(dim=1, keepdim=True)
    return (lengths * directions)[:count]
