"""docs/python-api.md: its examples run, and it names every function, rule and fallback there is."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any, get_args

import cake_mcp
from cake_mcp import fallback
from tests.cake_mcp.fake_cuda import FakeCuda

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")


def test_the_examples_run_as_written(cu: FakeCuda, torch: Any, tmp_path: Path) -> None:
    torch.randn = lambda *shape, device, dtype: torch.Tensor(shape, dtype)
    blocks = [
        b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import kmeans\n" not in b
    ]  # test_clustering.py
    assert len(blocks) == 3
    for i, block in enumerate(blocks):
        path = tmp_path / f"block{i}.py"
        path.write_text(block)
        names = runpy.run_path(str(path))
        if i == 0:
            assert names["labels"].shape == (8, 8192) and names["d"].shape == (4096, 2048) and len(cu.launches) == 3
        if "row_norms" in names:
            assert names["row_norms"](torch.Tensor((100, 64))).shape == (100,) and cu.launches[-1].kernel == "row_norms"


def test_every_function_is_listed_with_its_arguments() -> None:
    for name in cake_mcp.__all__:
        value = getattr(cake_mcp, name)
        if inspect.isfunction(value):
            row = next(line for line in PAGE.split("\n") if line.startswith(f"| `{name}("))
            assert all(p in row for p in inspect.signature(value).parameters), name


def test_every_rule_and_fallback_is_listed() -> None:
    sources = [*(ROOT / "cake_mcp").glob("*.py"), ROOT / "corpus/routes.py", ROOT / "corpus/recipes.py"]
    text = "\n".join(p.read_text(encoding="utf-8") for p in sources)
    rules = set(re.findall(r'"(dispatch/[a-z-]+)"', text)) | {
        f"dispatch/{r}" for r in re.findall(r'_bad\(\s*"([a-z-]+)"', text)
    }
    assert len(rules) > 12 and {r for r in rules if f"`{r}`" not in PAGE} == set()
    listed = set(re.findall(r"`(dispatch/[a-z-]+)`", PAGE))
    assert listed <= rules, listed - rules
    assert all(f"| `{how}` |" in PAGE for how in get_args(fallback.How))
    assert set(re.findall(r"\$(CAKE_[A-Z_]+)", PAGE)) == {"CAKE_CACHE_DIR", "CAKE_TABLES_DIR"}
