"""One block of a transformer over the last frames."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from nac_drive.policies.cores.attention import SoftmaxAttention
from nac_drive.policies.cores.base import Core, State, StateSpec


class Transformer(Core):
    """A block of a transformer.

    After Vaswani et al. 2017, with the norms first (Xiong et al. 2020):

        z = W_in x
        h = z + attention(norm(z))
        y = h + W_2 gelu(W_1 norm(h))

    The attention is `SoftmaxAttention`, positions included. W_in is left out where input and output have the
    same size. The hidden layer has twice the size of the output.

    State: the last frames, see `SoftmaxAttention`.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` is less than 1.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 8) -> None:
        super().__init__()
        self.input_size, self.output_size, self.window = input_size, output_size, window
        self.enter = nn.Identity() if input_size == output_size else nn.Linear(input_size, output_size)
        self.attention: Core = SoftmaxAttention(output_size, output_size, num_heads=num_heads, window=window)
        self.first_norm, self.second_norm = nn.LayerNorm(output_size), nn.LayerNorm(output_size)
        self.up, self.down = nn.Linear(output_size, 2 * output_size), nn.Linear(2 * output_size, output_size)

    def state_shapes(self) -> StateSpec:
        return self.attention.state_shapes()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        z = self.enter(x)
        mixed, state = self.attention(self.first_norm(z), dt, state)
        h = z + mixed
        return h + self.down(functional.gelu(self.up(self.second_norm(h)))), state
