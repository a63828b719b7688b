"""Selections, against answers known by hand, brute force and each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.policies.nac.masks import Mask
from nac_drive.policies.nac.selection import TIE, _largest, block, pairwise, topk

CPU = torch.device("cpu")


def block_keys(q: np.ndarray, k: np.ndarray, top_k: int) -> list[set[int]]:
    """Algorithm 2 for one head, line by line: the keys each query keeps; q (Tq, D), k (Tk, D)."""
    size = int(np.sqrt(len(k)))
    blocks = [range(start, min(start + size, len(k))) for start in range(0, len(k), size)]
    kept = []
    for query in q:
        coarse = [float(query @ k[list(block)].mean(axis=0)) for block in blocks]
        best = sorted(range(len(blocks)), key=lambda b, coarse=coarse: -coarse[b])[: -(-top_k // size)]
        candidates = [j for b in best for j in blocks[b]]
        kept.append(set(sorted(candidates, key=lambda j, query=query: -float(query @ k[j]))[:top_k]))
    return kept


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, -1, 1)


def kept_keys(selection, q: torch.Tensor, size: int | None = None) -> list[set[int]]:
    """Kept keys of every (batch, head, query) in order. The queries in chunks of `size`."""
    queries, chosen = q.shape[2], []
    for start in range(0, queries, size or queries):
        rows = slice(start, min(start + (size or queries), queries))
        index, masked = selection.choose(q[:, :, rows], rows)
        chosen.append(index if masked is None else index.masked_fill(masked, -1))
    result = [[j for j in row if j >= 0] for row in torch.cat(chosen, dim=2).flatten(0, 2).tolist()]
    assert all(len(row) == len(set(row)) for row in result), "a key is kept twice"
    return [set(row) for row in result]


def allowed_keys(mask: Mask, row: int, query: int) -> set[int]:
    masked = mask.masked(slice(query, query + 1), CPU)
    if masked is None:
        return set(range(mask.keys))
    masked = masked.expand(row + 1 if masked.dim() < 4 or len(masked) == 1 else -1, 1, 1, -1)
    return {j for j in range(mask.keys) if not masked[row, 0, 0, j]}


def test_topk_keeps_the_largest_dot_products() -> None:
    q, k = column(1.0, -1.0), column(3.0, 0.0, -2.0, 1.0)
    assert kept_keys(topk(k, Mask(2, 4), 2), q) == [{0, 3}, {1, 2}]


def test_topk_prefers_allowed_keys_and_flags_the_rest() -> None:
    q, k = column(1.0, 1.0, 1.0, 1.0), column(3.0, 0.0, -2.0, 1.0)
    valid = torch.tensor([[False, True, True, True]])
    assert kept_keys(topk(k, Mask(4, 4, causal=True, valid=valid), 2), q) == [set(), {1}, {1, 2}, {1, 3}]


def test_with_no_more_keys_than_wanted_every_selection_is_pairwise() -> None:
    q, k, mask = column(1.0), column(1.0, 2.0), Mask(1, 2, valid=torch.tensor([[True, False]]))
    for select in (topk, block, pairwise):
        for top_k in (2, 5):
            index, masked = select(k, mask, top_k).choose(q, slice(0, 1))
            assert index is None
            assert masked is not None
            assert masked.flatten().tolist() == [False, True]


@pytest.mark.parametrize(
    "values", [(1.0, 1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0 + 1e-6, 1.0, 1.0, 1.0)]
)
def test_of_keys_that_tie_the_youngest_are_kept(values: tuple[float, ...]) -> None:
    for q in (column(1.0, 1.0), column(0.0, 0.0)):
        assert kept_keys(topk(column(*values), Mask(2, 5, causal=True), 2), q) == [{2, 3}, {3, 4}]


def test_a_larger_score_beats_a_younger_key() -> None:
    q, k = column(1.0), column(1.0, 1.001, 1.0, 1.0, 1.0)
    assert kept_keys(topk(k, Mask(1, 5, window=5), 1), q) == [{1}]


masks = st.builds(
    lambda extra, causal, window, padded: (extra, causal, window, padded),
    st.integers(0, 9),
    st.booleans(),
    st.none() | st.integers(1, 30),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 24), masks, st.integers(1, 12), st.sampled_from(["topk", "block"]))
def test_selections_keep_only_allowed_keys_and_the_best_of_those_they_search(
    seed: int, queries: int, kind: tuple[int, bool, int | None, bool], top_k: int, name: str
) -> None:
    extra, causal, window, padded = kind
    torch.manual_seed(seed)
    keys = queries + extra
    valid = torch.rand(2, keys) < 0.7 if padded else None
    mask = Mask(queries, keys, causal, window, valid)
    q, k = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4)
    selection = {"topk": topk, "block": block}[name](k, mask, top_k)
    if top_k >= keys:
        assert selection.choose(q, slice(0, queries))[0] is None
        return
    chosen = kept_keys(selection, q)
    assert chosen == kept_keys(selection, q, 3)  # whatever the chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nac_drive.policies.nac.selection._NUMBERS_HELD", 200)
        assert chosen == kept_keys(selection, q)  # however few are chosen for at a time
    everything = [kept_keys(block(k, mask, top_k, size=keys), q), kept_keys(topk(k, mask, top_k), q)]
    for place, found in enumerate(chosen):
        row, head, query = place // (3 * queries), place // queries % 3, place % queries
        allowed = allowed_keys(mask, row, query)
        assert found <= allowed
        scores = k[row, head] @ q[row, head, query]
        sizes = q[row, head, query].norm() * k[row, head].norm(dim=1)
        behind = (extra + query - torch.arange(keys)) / (window or keys)
        best, youngest = (
            set(sorted(allowed, key=lambda j, scores=scores: -float(scores[j]))[:top_k])
            for scores in (scores, scores - TIE * sizes * behind)
        )
        if name == "topk":
            assert found == youngest
        assert bool(found) == bool(allowed)  # block, too, finds something wherever there is anything
        assert everything[0][place] == best  # one block holds everything
        assert everything[1][place] == youngest


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 70), st.integers(1, 20))
def test_block_is_algorithm_2(seed: int, keys: int, top_k: int) -> None:
    torch.manual_seed(seed)
    q, k = torch.randn(1, 1, 5, 4, dtype=torch.float64), torch.randn(1, 1, keys, 4, dtype=torch.float64)
    if top_k < keys:
        expected = block_keys(q[0, 0].numpy(), k[0, 0].numpy(), top_k)
        assert kept_keys(block(k, Mask(5, keys), top_k), q) == expected


@pytest.mark.parametrize("window", [None, 7])
def test_no_key_of_the_future_influences_a_block_selection(window: int | None) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 40, 4), torch.randn(1, 2, 40, 4)
    mask = Mask(40, 40, causal=True, window=window)
    before = kept_keys(block(k, mask, 3), q)
    k[:, :, 23:] = 100.0 * torch.randn(1, 2, 17, 4)
    after = kept_keys(block(k, mask, 3), q)
    for head in (0, 40):
        assert before[head : head + 23] == after[head : head + 23]
        assert before[head + 23 : head + 40] != after[head + 23 : head + 40]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 700), st.integers(1, 3), st.booleans())
def test_folding_long_rows_keeps_the_largest(seed: int, length: int, count: int, holes: bool) -> None:
    count = min(count, length)
    scores = torch.randn(4, length, generator=torch.Generator().manual_seed(seed))
    if holes:
        scores[:, ::2] = -torch.inf
    values, index = _largest(scores, count)
    assert torch.equal(scores.gather(1, index), values)
    assert torch.equal(values.sort(dim=1).values, scores.topk(count, dim=1).values.flip(1))
    assert all(len(set(row)) == count for row in index.tolist())


def test_a_nan_is_never_passed_over() -> None:
    scores = torch.randn(2, 1000)
    scores[1, 777] = torch.nan
    values, index = _largest(scores, 3)
    assert values[0].isfinite().all()
    assert values[1].isnan().any()
    assert 777 in index[1]
