#!/usr/bin/env python3
"""Write the generated pages under docs/, or with --check say which are out of date (exit 1).

python tools/gen_docs.py [--check]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def targets_page() -> str:
    """docs/targets.md from the target tables."""
    from cake_ir import targets
    from cake_ir.targets.document import document

    return document(tuple(targets.get(name) for name in targets.names()))


def ops_page() -> str:
    """docs/ops.md from the op declarations."""
    from tools.op_pages import document

    return document()


def rules_page() -> str:
    """docs/rules.md from the rule modules."""
    from tools.rule_pages import document

    return document()


def verifier_page() -> str:
    """docs/verifier.md with the report card from the committed runs; the rest of the page is written by hand."""
    from tools.report_card import verifier_page as page

    return page()


def speed_page() -> str:
    """docs/speed.md from the committed speed tables."""
    from corpus.speed.page import document

    return document()


def cost_model_page() -> str:
    """docs/cost-model.md with the figures of the committed ranking; the rest of the page is written by hand."""
    from corpus.ranking import figures, page
    from tools.report_card import with_card

    made = figures.read() if figures.PATH.exists() else None
    return with_card(
        (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8"), page.section(made), page.BEGIN, page.END
    )


@functools.cache
def pictures() -> dict[str, str]:
    """The pictures of docs/cost-model.md by path, from the committed ranking; none without one."""
    from corpus.ranking import figures, page, plots, points

    if not figures.PATH.exists():
        return {}
    made = figures.read()
    return {f"docs/{page.PICTURES}/{name}": svg for name, svg in plots.pictures(made, points.read(made["set"])).items()}


PAGES: dict[str, Callable[[], str]] = {
    "docs/targets.md": targets_page,
    "docs/ops.md": ops_page,
    "docs/rules.md": rules_page,
    "docs/verifier.md": verifier_page,
    "docs/speed.md": speed_page,
    "docs/cost-model.md": cost_model_page,
}


def pages() -> dict[str, Callable[[], str]]:
    """All generated files: the pages, and the pictures that there are data for."""
    return {**PAGES, **{path: functools.partial(pictures().__getitem__, path) for path in pictures()}}


def outdated() -> list[str]:
    """Pages whose committed text differs from what the code says."""
    stale = []
    for path, make in pages().items():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != make():
            stale.append(path)
    return stale


def main(argv: list[str]) -> int:
    stale = outdated()
    if argv == ["--check"]:
        for path in stale:
            print(f"{path} is out of date: run python tools/gen_docs.py")
        every = len(pages())
        print(f"{every - len(stale)} of {every} generated pages are up to date")
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(pages()[path](), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
