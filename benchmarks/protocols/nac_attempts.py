"""Cores of docs/nac-attempts.md: attempts at a better NAC.

    nac-drive compare broken --drivers lstm nac-sharp benchmarks/protocols/nac_attempts.py:Carried \
        --freeze-encoder-from expert --out runs/nac-attempts

`Seen` takes the encoder of `expert` for granted: it has to know the features of a black frame.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import nac_drive as nd
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.policies import Driver
from nac_drive.policies.cores.attention import SoftmaxAttention
from nac_drive.policies.cores.base import NOMINAL_DT
from nac_drive.policies.cores.registry import build_core
from nac_drive.policies.cores.transformer import Transformer
from nac_drive.policies.cores.window import WindowCore, mix_heads, split_heads
from nac_drive.policies.nac.layer import NAC
from nac_drive.policies.nac.variants import NAC_VARIANTS

NEAR = 1e-3


@cache
def black() -> Tensor:
    """Return the features (F,) of a black frame."""
    driver = resolve_driver("expert", nd.EnvConfig("continuous"))
    if not isinstance(driver, Driver):
        raise TypeError("the expert must be a network.")
    with torch.no_grad():
        return driver.features(torch.zeros(1, 1, 96, 96, 3, dtype=torch.uint8))[0, 0]


class Window(nd.Core):
    """NAC-sharp over the last eight frames."""

    continuous_time = True
    window = 8
    """Number of frames."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.nac = NAC(output_size, 4, input_size=input_size, selection="pairwise", **NAC_VARIANTS["nac-sharp"])

    def state_shapes(self) -> tuple[Any, ...]:
        nac = self.nac
        frames = (self.window,)
        keys = (nac.num_heads, *frames, nac.head_size + nac.drive_size + 2)
        return (keys, None), ((*frames, self.input_size), None), (frames, None), (frames, torch.bool)

    def kept(self, x: Tensor) -> Tensor:
        """Return which frames (B, T) enter the window."""
        return torch.ones(x.shape[:2], dtype=torch.bool)

    def chosen(self, a: Tensor, blocked: Tensor) -> Tensor:
        """Return which keys (..., W) a query attends to."""
        return ~blocked

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        keys, inputs, age, filled = state
        batch, length, nac, window = *x.shape[:2], self.nac, self.window
        new = nac.project(x)
        keys, inputs = torch.cat((keys, new.kv), dim=2), torch.cat((inputs, x), dim=1)
        valid, now = torch.cat((filled, self.kept(x)), dim=1), dt.cumsum(dim=1)  # (B, W + T), (B, T)
        at, position = torch.cat((-age, now), dim=1), torch.arange(window + length)

        rank = valid.long().cumsum(dim=1)  # of every key among the valid ones, from 1
        order = torch.where(valid, rank - 1, window + length - 1)
        places = position.new_zeros(batch, window + length).scatter(1, order, position.expand(batch, -1))
        wanted = rank[:, window:, None] - window + torch.arange(window)  # (B, T, W): the last valid keys of a query
        blocked = (wanted < 0).view(1, 1, batch * length, window)
        rows = places.gather(1, wanted.clamp(min=0).flatten(1))  # (B, T W)

        parts = keys[..., nac.head_size :]
        pairs = parts.gather(2, rows[:, None, :, None].expand(-1, keys.shape[1], -1, parts.shape[3]))
        pairs = pairs.transpose(0, 1).reshape(1, nac.num_heads, batch * length, window, -1)
        query = new.query_logit_inputs.transpose(0, 1).reshape(1, nac.num_heads, batch * length, 1, -1)
        ages = (now.unsqueeze(2) - at.gather(1, rows).view(batch, length, window)).clamp(min=0) / NOMINAL_DT
        a = nac._logits(query, pairs, ages.view(1, 1, batch * length, window), nac.backbone.fused())[4]
        a = a.masked_fill(blocked, torch.finfo(a.dtype).min)
        chosen = self.chosen(a, blocked)
        alpha = a.masked_fill(~chosen, torch.finfo(a.dtype).min).softmax(dim=3).masked_fill(~chosen, 0.0)
        values = inputs.gather(1, rows.unsqueeze(2).expand(-1, -1, inputs.shape[2])).view(batch * length, window, -1)
        y = nac.out((alpha[0].transpose(0, 1) @ values).flatten(1)).view(batch, length, -1)

        last = torch.where(valid, position, -1).topk(window, dim=1).values.flip(1)  # (B, W)
        index, filled = last.clamp(min=0), last >= 0
        keys = keys.gather(2, index[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3]))
        inputs = inputs.gather(1, index.unsqueeze(2).expand(-1, -1, inputs.shape[2]))
        return y, (keys, inputs, (now[:, -1:] - at).gather(1, index) * filled, filled)


class Seen(Window):
    """NAC-sharp over the last eight frames that are not black."""

    def kept(self, x: Tensor) -> Tensor:
        apart = x.detach() - black() if x.shape[2] == len(black()) else x.detach()
        return x.ne(0).any(dim=2) & (apart.abs().amax(dim=2) > NEAR)


class Selected(Window):
    """NAC-sharp with eight keys of the last 32 frames.

    They have the largest logits: the score that selects a key is the one that weighs it.
    """

    window = 32

    def chosen(self, a: Tensor, blocked: Tensor) -> Tensor:
        best = torch.zeros_like(a, dtype=torch.bool).scatter(3, a.topk(8, dim=3).indices, True)
        return best & ~blocked


class Past(nn.Module):
    """Neurons that are never reset. They follow dh/dt = omega (phi - h)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.drive, self.back = nn.Linear(input_size, 2 * size), nn.Linear(size, 2 * size, bias=False)
        nn.init.orthogonal_(self.back.weight[:size].data)

    def forward(self, x: Tensor, dt: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames with neurons beside them.

        They are (B, T, F + M). The last neurons come second.
        """
        past = []
        for driven, step in zip(self.drive(x).unbind(1), (dt / NOMINAL_DT).unsqueeze(2).unbind(1), strict=True):
            phi, omega = (driven + self.back(h)).chunk(2, dim=1)
            h = phi.tanh() + (h - phi.tanh()) * torch.exp(-functional.softplus(omega) * step)
            past.append(h)
        return torch.cat((x, torch.stack(past, dim=1)), dim=2), h


class Carried(nd.Core):
    """NAC-sharp over frames and the neurons of `Past`."""

    continuous_time = True
    memory = 64
    """Number of neurons."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.past, self.window = Past(input_size, self.memory), Window(input_size + self.memory, output_size)

    def state_shapes(self) -> tuple[Any, ...]:
        return ((self.memory,), None), *self.window.state_shapes()

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, *rest = state
        seen, h = self.past(x, dt, h)
        y, rest = self.window(seen, dt, tuple(rest))
        return y, (h, *rest)


class Neurons(nd.Core):
    """`Carried` without attention."""

    continuous_time = True
    memory = Carried.memory

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.past, self.out = Past(input_size, self.memory), nn.Linear(input_size + self.memory, output_size)

    def state_shapes(self) -> tuple[Any, ...]:
        return (((self.memory,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        seen, h = self.past(x, dt, state[0])
        return self.out(seen), (h,)


class Forget(nd.Core):
    """Attention to the whole past.

    Every frame is weighed once, by its own logit, and forgotten at a rate of the head.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 8, gain: float = 4.0) -> None:
        super().__init__()
        self.input_size, self.output_size, self.num_heads, self.gain = input_size, output_size, num_heads, gain
        self.key, self.sink = (
            nn.Sequential(nn.Linear(input_size, 64), nn.Tanh(), nn.Linear(64, num_heads)) for _ in range(2)
        )
        slowest, fastest = 0.01, 2.0  # per frame
        slopes = torch.logspace(math.log10(fastest), math.log10(slowest), num_heads)
        self.slope = nn.Parameter(slopes.expm1().log())
        self.out = nn.Linear(num_heads * input_size, output_size)

    def state_shapes(self) -> tuple[Any, ...]:
        return ((self.num_heads, self.input_size), None), ((self.num_heads,), None)

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        sums, weights = state
        logit = self.gain * self.key(x).tanh()  # (B, T, H)
        sink = torch.exp(self.gain * self.sink(x).tanh())
        now, slope = (dt / NOMINAL_DT).cumsum(dim=1), functional.softplus(self.slope)
        since = (now.unsqueeze(2) - now.unsqueeze(1)).clamp(min=0)  # (B, T, T)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weight = torch.exp(logit.transpose(1, 2).unsqueeze(2) - slope.view(-1, 1, 1) * since.unsqueeze(1)) * causal
        left = torch.exp(-slope * now.unsqueeze(2)).transpose(1, 2)  # (B, H, T)
        total = weight @ x.unsqueeze(1) + left.unsqueeze(3) * sums.unsqueeze(2)  # (B, H, T, F)
        norm = weight.sum(dim=3) + left * weights.unsqueeze(2)
        y = total / (norm + sink.transpose(1, 2)).unsqueeze(3)
        return self.out(y.transpose(1, 2).flatten(2)), (total[:, :, -1], norm[:, :, -1])


class Block(Transformer):
    """A transformer's block whose attention is nac-sharp."""

    continuous_time = True

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size)
        self.attention = build_core("nac-sharp", output_size, output_size)


class Gated(nd.Core):
    """NAC-sharp behind a gate.

    The query's frame opens every output by a sigmoid.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.nac, self.gate = build_core("nac-sharp", input_size, output_size), nn.Linear(input_size, output_size)

    def state_shapes(self) -> tuple[Any, ...]:
        return self.nac.state_shapes()

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.nac(x, dt, state)
        return y * self.gate(x).sigmoid(), state


class Stack(nd.Core):
    """Two blocks in a row.

    The second one attends to what the first one made of every frame: to past decisions, and 15 frames back.
    """

    block: type[Transformer] = Block

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.first, self.second = self.block(input_size, output_size), self.block(output_size, output_size)
        self.continuous_time = self.block.continuous_time

    def state_shapes(self) -> tuple[Any, ...]:
        return (*self.first.state_shapes(), *self.second.state_shapes())

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        border = len(self.first.state_shapes())
        x, first = self.first(x, dt, state[:border])
        x, second = self.second(x, dt, state[border:])
        return x, (*first, *second)


class TransformerStack(Stack):
    """The rival of `Stack`: two blocks of a transformer."""

    block = Transformer


class AgedAttention(SoftmaxAttention):
    """Softmax attention whose slopes count time.

    A head subtracts slope age / 0.02 s from its scores, in place of slope (t - s).
    """

    continuous_time = True

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        q = split_heads(self.query(x[:, -age.shape[1] :]), self.num_heads)
        k, v = (split_heads(side, self.num_heads) for side in self.kv(x).chunk(2, dim=2))
        bias = -self.slope[:, None, None] * (age / NOMINAL_DT).unsqueeze(1)  # (B, H, T, S)
        return self.output(mix_heads(self.log_kernel(q, k) + bias, allowed, v))


class Aged(Transformer):
    """The transformer's block with slopes that count time."""

    continuous_time = True

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size)
        self.attention = AgedAttention(output_size, output_size, num_heads=4, window=self.window)


class Dot(WindowCore):
    """Nac-sharp without circuits.

    The logit is a scaled dot product. Window, heads, slopes of the age and whole inputs as values are nac-sharp's.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int, *, num_heads: int = 4) -> None:
        super().__init__(input_size, output_size, Window.window)
        self.num_heads = num_heads
        self.query, self.key = nn.Linear(input_size, output_size), nn.Linear(input_size, output_size)
        slopes = 2.0 * 0.25 ** torch.arange(num_heads)
        self.slope = nn.Parameter(slopes.expm1().log())
        self.out = nn.Linear(num_heads * input_size, output_size)

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        q = split_heads(self.query(x[:, -age.shape[1] :]), self.num_heads)
        k = split_heads(self.key(x), self.num_heads)
        slope = functional.softplus(self.slope).view(-1, 1, 1)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) - slope * (age / NOMINAL_DT).unsqueeze(1)
        return self.out(mix_heads(scores, allowed, x.unsqueeze(1).expand(-1, self.num_heads, -1, -1)))


class Recalled(nd.Core):
    """NAC-sharp over what an LSTM made of every frame.

    The output is added to the LSTM's.
    """

    continuous_time = True

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.past = build_core("lstm", input_size, output_size)
        self.nac = build_core("nac-sharp", output_size, output_size)

    def state_shapes(self) -> tuple[Any, ...]:
        return (*self.past.state_shapes(), *self.nac.state_shapes())

    def forward(self, x: Tensor, dt: Tensor, state: Any) -> tuple[Tensor, Any]:
        border = len(self.past.state_shapes())
        h, past = self.past(x, dt, state[:border])
        y, nac = self.nac(h, dt, state[border:])
        return h + y, (*past, *nac)
