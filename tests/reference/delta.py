"""Reference of gated delta attention, one token at a time, as the recurrence is defined.

With value x key state S, decay d in (0, 1) per key channel and rate b: S <- S diag(d); S <- S + b (v - S k) k^T; o = scale S q.
Keys and queries are normalised; d = exp(lower sigmoid(exp(a_log) (g + bias))), b = sigmoid(beta).
"""

from __future__ import annotations

import numpy as np

from tests.reference import BF16, Arrays, Problem, f64, normal, outside, sigmoid

WIDTH = 128
EPS = 1e-6


def _inputs(tokens: int, states: int, heads: int) -> Arrays:
    rng = np.random.default_rng([8, tokens, states, heads])
    names = {n: normal(rng, tokens, heads, WIDTH) for n in ("q", "k", "v", "g")}
    return names | {
        "beta": normal(rng, tokens, heads),
        "a_log": normal(rng, heads, dtype=np.float32, scale=0.5),
        "dt_bias": normal(rng, heads, WIDTH, dtype=np.float32, scale=0.5),
        "state": normal(rng, states, heads, WIDTH, WIDTH, dtype=np.float32, scale=0.1),
    }


def _walk(t: Arrays, owner: list[range], scale: float, lower: float) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [tokens, heads, width] and final states; owner[s]: the tokens of state s, in order."""
    q, k = f64(t["q"]), f64(t["k"])
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + EPS)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + EPS)
    gate = sigmoid(np.exp(f64(t["a_log"]))[None, :, None] * (f64(t["g"]) + f64(t["dt_bias"])[None]))
    decay, rate = np.exp(lower * gate), sigmoid(f64(t["beta"]))
    out, state = np.zeros(q.shape), f64(t["state"])
    for s, tokens in enumerate(owner):
        for h in range(q.shape[1]):
            now = state[s, h]
            for i in tokens:
                now = now * decay[i, h]
                now = now + rate[i, h] * np.outer(f64(t["v"])[i, h] - now @ k[i, h], k[i, h])
                out[i, h] = scale * now @ q[i, h]
            state[s, h] = now
    return out, state


def _problem(t: Arrays, owner: list[range], step: float) -> Problem:
    """step: error relative to the largest element of a token's output, and of a head's state."""
    scale, lower = float(np.float32(WIDTH**-0.5)), -0.5
    out, state = _walk(t, owner, scale, lower)
    bound_o = step * np.abs(out).max(-1, keepdims=True) + 2.0**-8 * np.abs(out)
    bound_s = step * np.abs(state).max((-1, -2), keepdims=True)

    def judge(got: dict[str, np.ndarray]) -> list[str]:
        return [*outside("o", got["o"], out, bound_o), *outside("state", got["state"], state, bound_s)]

    right = {"o": out.astype(BF16), "state": state.astype(np.float32)}
    return Problem(t, judge, right, {"scale": scale, "lower": lower})  # type: ignore[arg-type]


def prefill(lengths: tuple[int, ...], heads: int) -> Problem:
    """Sequences of the given lengths, one state each. The kernel's chunks round their factors to bf16: 2^-6 overall, and the worst
    of some hundred thousand elements a little more (1.02 * 2^-6 of 346,112 on an H200, the same bits at every launch)."""
    cu = np.cumsum([0, *lengths]).astype(np.int32)
    t = _inputs(int(cu[-1]), len(lengths), heads) | {"cu": cu}
    return _problem(t, [range(int(cu[i]), int(cu[i + 1])) for i in range(len(lengths))], 1.25 * 2.0**-6)


def decode(batches: int, heads: int) -> Problem:
    """One token per state, in f32 throughout."""
    return _problem(_inputs(batches, batches, heads), [range(i, i + 1) for i in range(batches)], 2.0**-16)
