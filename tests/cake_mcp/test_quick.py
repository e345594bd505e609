"""The quick way: taken for the same combination of tensors, left for any other, and never different in what is launched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from cake_mcp import CakeError, gemm, kmeans_assign
from cake_mcp.assign import ASSIGN
from cake_mcp.operation import _no_quick
from cake_mcp.quick import probe
from tests.cake_mcp.fake_cuda import PRIMARY, FakeCuda
from tests.cake_mcp.test_calls import arrays


@pytest.fixture
def general(cu: FakeCuda, torch: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One GPU and torch with its private parts; a list that grows with every call of the general way."""
    cu.devices = 1
    torch._C._dynamo = SimpleNamespace(guards=torch.guards)
    calls: list[int] = []
    view = __import__("cake_mcp.arrays", fromlist=["Torch"]).Torch.view

    def counted(self: Any, array: Any, stream: int) -> Any:
        calls.append(stream)
        return view(self, array, stream)

    monkeypatch.setattr("cake_mcp.arrays.Torch.view", counted)
    return calls


def test_the_same_combination_is_only_compared_and_launched(cu: FakeCuda, torch: Any, general: list[int]) -> None:
    x, c, sq = arrays(torch)
    kmeans_assign(x, c, c_sq=sq)
    general.clear()
    for stream in (7, 8, 8):
        torch.stream = stream
        other = torch.Tensor((2, 500, 64))
        labels = kmeans_assign(other, c, c_sq=sq)
        got = cu.launches[-1]
        assert (
            labels.shape == (2, 500)
            and labels.dtype is torch.int32
            and (got.u64(1), got.stream) == (labels.data_ptr(), stream)
        )
        assert cu.maps[got.u64(2)]["pointer"] == other.data_ptr() and got.u64(0) == sq.data_ptr()
    assert not general and len(torch.made) == 4


def test_combinations_in_turn_each_have_their_quick_way(cu: FakeCuda, torch: Any, general: list[int]) -> None:
    """Layers of a model: products of several shapes, one after the other."""
    layers = [
        (torch.Tensor((300, k)), torch.Tensor((n, k)).T) for n, k in [(512, 128), (1024, 128), (512, 256), (8, 64)]
    ]
    out = torch.Tensor((300, 8))
    for turn in range(3):
        general.clear()
        for a, b in layers:
            d = gemm(a, b)
            assert d.shape == (300, b.shape[1]) and cu.maps[cu.launches[-1].u64(1)]["pointer"] == b.data_ptr()
            assert cu.maps[cu.launches[-1].u64(2)]["pointer"] == d.data_ptr()
        assert gemm(*layers[-1], out=out) is out and cu.maps[cu.launches[-1].u64(2)]["pointer"] == out.data_ptr()
        assert bool(general) is (turn == 0)


def test_a_mark_that_two_combinations_share_is_no_mistake(cu: FakeCuda, torch: Any, general: list[int]) -> None:
    x, c, sq = arrays(torch)
    other = torch.Tensor((2, 100), torch.float32, strides=(1, 2))
    for _ in range(2):
        kmeans_assign(x, c, c_sq=sq)
        with structlog.testing.capture_logs():
            kmeans_assign(x, c, c_sq=other)
        assert cu.launches[-1].u64(0) not in (other.data_ptr(), sq.data_ptr())  # a copy


def test_scratch_memory_and_outputs_are_as_on_the_general_way(cu: FakeCuda, torch: Any, general: list[int]) -> None:
    x, c, _ = arrays(torch)
    out = torch.Tensor((2, 500), torch.int32)
    for first, given in [(True, None), (False, None), (True, out), (False, out)]:
        if first:
            general.clear()
        before = len(torch.made)
        labels = kmeans_assign(x, c, out=given)
        norms, assign = cu.launches[-2:]
        assert len(torch.made) == before + (2 if given is None else 1) and (given is None or labels is out)
        assert norms.u64(1) == assign.u64(0) == torch.made[-1][0].data_ptr() and assign.u64(1) == labels.data_ptr()
        assert first or len(general) == (2 if given is None else 3)  # nothing since the first of the pair


@pytest.mark.parametrize(
    "change",
    [
        lambda t, x, c, q: (t.Tensor((2, 501, 64)), c, q), lambda t, x, c, q: (x, c, None), lambda t, x, c, q: (x[0], c[0], q),
        lambda t, x, c, q: (t.Tensor((2, 500, 64), strides=(1, 64, 2)), c, q), lambda t, x, c, q: (t.Tensor((2, 500, 64), offset=2), c, q),
    ],
)  # fmt: skip
def test_any_other_combination_takes_the_general_way(cu: FakeCuda, torch: Any, general: list[int], change: Any) -> None:
    torch.Tensor.__getitem__ = lambda self, i: torch.Tensor(
        (2, *self.shape[1:])
    )  # stands for other tensors of that shape
    x, c, sq = arrays(torch)
    kmeans_assign(x, c, c_sq=sq)
    general.clear()
    x2, c2, sq2 = change(torch, x, c, sq)
    with structlog.testing.capture_logs():
        kmeans_assign(x2, c2, c_sq=sq2)
    assert general or x2.shape == x.shape
    got = cu.launches[-1]
    assert got.i32(6) == x2.shape[1] and cu.maps[got.u64(2)]["pointer"] % 16 == 0


def test_an_explicit_stream_that_is_not_current_takes_the_general_way(
    cu: FakeCuda, torch: Any, general: list[int]
) -> None:
    x, c, sq = arrays(torch)
    kmeans_assign(x, c, c_sq=sq)
    general.clear()
    kmeans_assign(x, c, c_sq=sq, stream=7)
    assert not general and cu.launches[-1].stream == 7 and not torch.held
    kmeans_assign(x, c, c_sq=sq, stream=40)
    assert general and cu.launches[-1].stream == 40 and len(torch.held) == 1


def test_what_is_refused_stays_refused(cu: FakeCuda, torch: Any, general: list[int]) -> None:
    x, c, sq = arrays(torch)
    out = torch.Tensor((2, 500), torch.int32)
    for _ in range(2):
        kmeans_assign(x, c, c_sq=sq, out=out)
    out._address = x.data_ptr() + 16
    with pytest.raises(CakeError, match="label shares memory with x"):
        kmeans_assign(x, c, c_sq=sq, out=out)
    out._address = 0x70000004
    with pytest.raises(CakeError, match="label does not start on a multiple of 16 bytes"):
        kmeans_assign(x, c, c_sq=sq, out=out)
    a, w = torch.Tensor((300, 128)), torch.Tensor((512, 128)).T
    torch.grad, w.requires_grad = False, True
    gemm(a, w)
    gemm(a, w)
    torch.grad = True
    with pytest.raises(CakeError, match="no gradient"):
        gemm(a, w)


def test_parts_that_do_not_tell_apart_are_not_used(torch: Any) -> None:
    torch._C._dynamo = SimpleNamespace(guards=torch.guards)
    assert probe(torch) is not None
    for check in (lambda self, *t: True, lambda self, *t: False, lambda self, *t: 1 / 0, lambda self, *t: len(t) == 2):
        honest, torch.guards.TensorGuards.check = torch.guards.TensorGuards.check, check
        assert probe(torch) is None
        torch.guards.TensorGuards.check = honest
    del torch.guards._empty_strided_cuda
    assert probe(torch) is None


def test_without_torchs_parts_or_alone_calls_are_the_same(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = arrays(torch)
    cu.devices = 1
    for _ in range(3):
        kmeans_assign(x, c, c_sq=sq)
    assert ASSIGN.quick is _no_quick and len(cu.launches) == 3
    cu.stack[:] = []
    kmeans_assign(x, c, c_sq=sq)
    assert cu.launches[-1].context == PRIMARY and not cu.stack
