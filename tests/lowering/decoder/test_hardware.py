"""The decoder against sm_90a hardware. Without a GPU only the probes' texts are compiled."""

from __future__ import annotations

import pytest

from lowering.runtime.errors import available
from tests.lowering.decoder import hardware_probes


def test_probes_compile_with_the_promised_instructions() -> None:
    from lowering.sass import disassemble, parse_sass

    code = parse_sass(disassemble(hardware_probes.cubin()))
    assert code.count(r"HGMMA\.64x64x16\.F32\.BF16") == 5
    assert code.count(r"UTMALDG\.2D") == 1 and code.count(r"LDSM\..*") == 2 and code.count(r"HMMA\..*") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not available(), reason="needs a GPU")
@pytest.mark.parametrize("probe", [pytest.param(p, id=p.name) for p in hardware_probes.probes()])
def test_hardware_agrees(probe: hardware_probes.Probe) -> None:
    with hardware_probes.Device() as device:
        if device.info().compute_capability != (9, 0):
            pytest.skip("the probes are sm_90a")
        probe.check(hardware_probes.Bench(device))
