"""The family of products d = a @ b in bf16 (contract gemm_bf16_nn): that of `gemm` with b as rows of the reduction."""

from __future__ import annotations

from corpus.families import Member
from corpus.families.gemm import TILES, family

FAMILY = family(
    "gemm_nn",
    "gemm_bf16_nn",
    "products a @ b of bf16 matrices",
    tuple(Member("gemm_sm90_nn", domains, fallback=True) for domains in TILES),
)
