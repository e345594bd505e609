"""A process of its own: import cake_mcp, call it on the played GPU, print what was loaded. Tables and cubins come from the environment."""

from __future__ import annotations

import json
import sys

from cake_mcp import gemm, operation
from tests.cake_mcp.fake_cuda import FakeCuda

HEAVY = (
    "numpy", "pydantic", "ml_dtypes", "cuda", "structlog", "cake_ir.text", "cake_ir.bound", "lowering.emission", "lowering.compile",
    "analyses",
)  # fmt: skip


class Tensor:
    """As much of a torch tensor as a call reads."""

    __module__ = "torch"
    dtype, requires_grad = "bfloat16", False

    def __init__(self, rows: int, columns: int, address: int, transposed: bool = False) -> None:
        self.shape = (columns, rows) if transposed else (rows, columns)
        self._strides = (1, columns) if transposed else (columns, 1)
        self._address = address

    def stride(self) -> tuple[int, int]:
        return self._strides

    def is_contiguous(self) -> bool:
        return self._strides[1] == 1

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self._address


def main() -> None:
    cu = FakeCuda()
    cu.parameters = {"gemm_sm90": 6}
    operation.libcuda = lambda: cu
    torch = type(sys)("torch")
    torch.bfloat16, torch.Tensor, torch.is_grad_enabled = "bfloat16", Tensor, lambda: True  # type: ignore[attr-defined]
    torch._C = type("C", (), {"_cuda_getCurrentRawStream": staticmethod(lambda device: 7)})  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    imported = [m for m in HEAVY if m in sys.modules]
    out = Tensor(256, 512, 0x30000000)
    assert gemm(Tensor(256, 128, 0x10000000), Tensor(512, 128, 0x20000000, True), out=out) is out
    print(
        json.dumps(
            {"imported": imported, "called": [m for m in HEAVY if m in sys.modules], "launches": len(cu.launches)}
        )
    )


if __name__ == "__main__":
    main()
