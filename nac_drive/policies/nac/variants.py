"""The named variants of the NAC layer, as settings: `NAC(64, 8, **NAC_VARIANTS["nac-2k"])`.

Source: NAC paper, Table 1 and appendix D.2. Unless named otherwise: exact mode, K = 8, sparsity 0.5.
"""

from __future__ import annotations

from typing import Any

NAC_VARIANTS: dict[str, dict[str, Any]] = {
    "nac-exact": {"mode": "exact"},
    "nac-euler": {"mode": "euler"},
    "nac-steady": {"mode": "steady"},
    "nac-2k": {"top_k": 2},
    "nac-32k": {"top_k": 32},
    "nac-pw": {"selection": "pairwise"},
    "nac-02s": {"sparsity": 0.2},
    "nac-09s": {"sparsity": 0.9},
    "nac-phi-linear": {"phi_activation": "linear"},
    "nac-phi-tanh": {"phi_activation": "tanh"},
    # the circuits replaced by multi-layer perceptrons of the same sizes, dense or as sparse
    "nac-fc": {"wiring": "mlp", "sparsity": 0.0},
    "nac-09sfc": {"wiring": "mlp", "sparsity": 0.9},
    "nac-05sfc": {"wiring": "mlp", "sparsity": 0.5},
    "nac-02sfc": {"wiring": "mlp", "sparsity": 0.2},
    # Algorithm 2 of the later paper, and a trained score, which the paper leaves to future work
    "nac-block": {"selection": "block"},
    "nac-learned": {"selection": "learned"},
    # beyond the paper: logits that a softmax can tell apart, a learned loss per unit of age, whole inputs as values
    "nac-sharp": {"gain": 8.0, "recency": 2.0, "value": "input", "output": "riemann"},
    # and the score q.k among the logits
    "nac-scored": {"gain": 8.0, "recency": 2.0, "scored": True, "value": "input", "output": "riemann"},
}
"""Name of a variant -> settings of `NAC`."""
