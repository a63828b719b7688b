"""Block selection against the exact top-K: the keys that it misses, and the time that it saves.

python benchmarks/layer/block_selection.py

Prints the fraction of the K = 8 best keys that it keeps, the fraction of their softmax(q.k) weight, and milliseconds of
choosing for all queries (4 heads of 16 features), on the keys of a fresh layer. "noise": independent inputs; "smooth":
each input close to the one before, as in a video.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from nac_drive.policies import NAC
from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.selection import Selection, block, topk

TOP_K = 8


def milliseconds(selection: Selection, q: Tensor) -> float:
    """Median of ten choices for all queries, in chunks of 256."""
    times = []
    for _ in range(10):
        started = time.perf_counter()
        for start in range(0, q.shape[2], 256):
            selection.choose(q[:, :, start : start + 256], slice(start, start + 256))
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def marked(selection: Selection, q: Tensor, scores: Tensor) -> Tensor:
    """bool like `scores` (B, H, T, T), True for the keys that are kept."""
    index, _ = selection.choose(q, slice(0, q.shape[2]))
    assert index is not None
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(3, index, True)


def main() -> None:
    print("| T | inputs | causal | best keys kept | their weight kept | choosing: block ms | top-k ms |")
    print("|--:|:--|:--|--:|--:|--:|--:|")
    torch.manual_seed(0)
    layer = NAC(64, 4)
    for length in (64, 256, 1024, 4096):
        noise = torch.randn(1, length, 64)
        smooth = torch.nn.functional.avg_pool1d(torch.randn(1, 64, length + 31), 32, 1).transpose(1, 2) * 32**0.5
        for name, x in (("noise", noise), ("smooth", smooth)):
            for causal in (False, True):
                with torch.no_grad():
                    tokens = layer.project(x)
                    q, k = tokens.query, tokens.kv[..., : layer.head_size]
                    mask = Mask(length, length, causal)
                    chosen, exact = (select(k, mask, TOP_K) for select in (block, topk))
                    scores = q @ k.transpose(2, 3)
                    kept, best = (marked(selection, q, scores) for selection in (chosen, exact))
                    masked = mask.masked(slice(0, length), q.device)
                    if masked is not None:
                        kept, best = kept & ~masked, best & ~masked
                    both = kept & best
                    weight = (scores - scores.amax(dim=3, keepdim=True)).exp() * best
                    print(
                        f"| {length} | {name} | {'yes' if causal else 'no'} | {both.sum() / best.sum():.0%} "
                        f"| {(weight * both).sum() / weight.sum():.0%} | {milliseconds(chosen, q):.2f} "
                        f"| {milliseconds(exact, q):.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
