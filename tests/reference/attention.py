"""Reference of the attention forward pass with ragged key lengths and grouped heads."""

from __future__ import annotations

import numpy as np

from tests.reference import BF16, ULP_BF16, Problem, f64, normal, outside


def attention(
    lengths: tuple[int, ...], queries: int, keys: int, heads: int, kv_heads: int, width: int, causal: bool
) -> Problem:
    """o = softmax(scale q k^T) v over the first lengths[b] keys; causal: query i sees keys up to i + length - queries.

    Layouts are [batch, sequence, head, width]. A query that sees nothing gives zeros. Keys past a length are NaN: reading them
    into a result would show.
    """
    batches = len(lengths)
    rng = np.random.default_rng([7, queries, keys, width, causal])
    q = normal(rng, batches, queries, heads, width)
    k, v = normal(rng, batches, keys, kv_heads, width), normal(rng, batches, keys, kv_heads, width)
    scale = float(np.float32(width**-0.5))
    want, spread = np.zeros(q.shape), np.zeros(q.shape)
    for b, n in enumerate(lengths):
        k[b, n:], v[b, n:] = np.nan, np.nan
        for h in range(heads):
            kv = h // (heads // kv_heads)
            s = scale * f64(q)[b, :, h] @ f64(k)[b, :n, kv].T
            if causal:
                s[np.arange(n)[None, :] > np.arange(queries)[:, None] + n - queries] = -np.inf
            seen = np.isfinite(s).any(-1)
            if not seen.any():
                continue
            p = np.exp(s[seen] - s[seen].max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            want[b, seen, h] = p @ f64(v)[b, :n, kv]
            spread[b, seen, h] = p @ np.abs(f64(v)[b, :n, kv])
    # the weights are rounded to bf16 before the second product, the sum of weights is not
    bound = ULP_BF16 * np.abs(want) + (ULP_BF16 + 2.0**-12) * spread
    return Problem(
        {"q": q, "k": k, "v": v, "kv_len": np.array(lengths, np.int32)},
        lambda out: outside("o", out["o"], want, bound),
        {"o": want.astype(BF16)},
        {"scale": scale},
    )
