"""The pages in a real browser: headless Chromium, one start for all tests, nothing fetched, nothing complained about.

Pages and the screenshot of the first stay under build/reports/ for whoever wants to look at them; with CAKE_SCREENSHOTS=1 those
of all. Drawing them takes longer than the tests.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from corpus import evidence
from corpus.contract import contracts
from corpus.kernels import kernels
from server.report import collect, comparison_page, evidence_page, timeline_page
from server.store import Store
from tests.server.conftest import ROOT
from tests.server.report.samples import GEMM, HOSTILE, bench, profile, shape

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
)

OUT = ROOT / "build" / "reports"
PICTURES = os.environ.get("CAKE_SCREENSHOTS") == "1"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WATCH = """
window.blocked = [];
addEventListener("securitypolicyviolation", (e) => window.blocked.push(`${e.violatedDirective} ${e.blockedURI}`));
"""
SIZE = {"width": 1280, "height": 800}
MOST_BYTES = 2_000_000
NOW = "2026-11-30T06:00:00+00:00"
VARIANT = "v_" + "1" * 32

PROFILES = sorted((evidence.DIRECTORY / "profiles").glob("*.json"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser with a new, empty user data directory. It ends with the module: its event loop must not meet others."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS), headless=True)
        yield started
        started.close()


Open = Callable[..., Any]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    """Opens a page from its file and, when the test is over, asserts that it asked for nothing and broke nothing."""
    opened: list[tuple[Any, list[str], list[str]]] = []

    def open_page(name: str, html: str, **context: Any) -> Any:
        OUT.mkdir(parents=True, exist_ok=True)
        file = OUT / f"{name}.html"
        file.write_text(html, encoding="utf-8")
        assert file.stat().st_size < MOST_BYTES
        page = browser.new_context(**{"viewport": SIZE, **context}).new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda m: said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: said.append(f"error: {e}"))
        page.on("dialog", lambda d: (said.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: asked.append(r.url))
        page.add_init_script(WATCH)
        page.goto(file.as_uri())
        opened.append((page, said, asked))
        if PICTURES or name == "committed":
            page.screenshot(path=OUT / f"{name}.png", full_page=True)
        return page

    yield open_page
    for page, said, asked in opened:
        assert said == [] and page.evaluate("window.blocked ?? []") == []
        assert len(asked) == 1 and asked[0].startswith("file:")
        page.context.close()


def fits(page: Any) -> None:
    """No horizontal scroll of the page; wide tables scroll inside."""
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def has_sections(page: Any, *names: str) -> None:
    """Headings are visible, every table has a caption and column heads, every picture a size and words for it."""
    shown = [h.inner_text() for h in page.query_selector_all("h2") if h.is_visible()]
    assert shown == list(names)
    for table in page.query_selector_all("table"):
        assert table.query_selector("caption") and table.query_selector("th[scope=col]")
    pictures = page.query_selector_all("figure > svg")
    for picture in pictures:
        box = picture.bounding_box()
        assert box and box["width"] > 200 and box["height"] > 20 and picture.get_attribute("aria-label")
    # Nothing but the caption may follow a heading in silence.
    for section in page.query_selector_all("main > section"):
        assert section.query_selector("table, figure, .facts, .empty"), section.get_attribute("id")


EVIDENCE = (
    "Speed-ups, losses first", "Verdicts", "Roofline", "Distributions", "Timelines", "Resources", "Conditions", "Evidence",
)  # fmt: skip
PROFILE = ("Summary", "Timeline", "Roles", "Program", "Counters")
RANKS = {"incorrect": 0, "invalid": 0, "error": 0, "slower": 1, "inconclusive": 2, "faster": 3, "measured": 4}


def losses_first(page: Any) -> list[str]:
    verdicts = page.eval_on_selector_all("#t-speedups tbody tr", "rows => rows.map(r => r.dataset.verdict)")
    assert [RANKS[v] for v in verdicts] == sorted(RANKS[v] for v in verdicts)
    return verdicts


@cache
def _committed() -> tuple[Any, str]:
    """What is committed, and its page: drawing the plots takes seconds."""
    found = collect.committed(contracts(), generated=NOW)
    return found, evidence_page(found)


def test_the_committed_evidence(show: Open) -> None:
    found, html = _committed()
    page = show("committed", html)
    has_sections(page, *EVIDENCE)
    assert losses_first(page) == [r.verdict for r in found.rows()]
    assert page.locator("#roofline figure [id^=roofline-point]").count() == len(found.timings)
    fits(page)
    for why in found.stale:
        assert why in page.inner_text("#stale")


def _set_of_forty(tmp_path: Path) -> str:
    store = Store(tmp_path / "ws")
    store.put_variant(VARIANT, "ir_" + "2" * 32, {"STAGES": 4}, "sm_90a", "gemm_sm90")
    verdicts = ["faster", "slower", "inconclusive", "faster"]
    ratios = {"faster": 1.4, "slower": 0.7, "inconclusive": 1.0}
    rows = [
        shape(256 * (n + 1), verdicts[n % 4], ratios[verdicts[n % 4]], mode=m)
        for n in range(38)
        for m in ("warm", "cold")
    ]
    rows += [shape(64, "incorrect", None), shape(128, "measured", None)]
    for raw, kind in ((bench("gemm_sm90", rows), "bench"), (profile(), "profile")):
        store.put_measurement(VARIANT, "gemm_bf16", {}, "NVIDIA H200", kind, "passed", {"raw": raw})
    found = collect.stored(store, [VARIANT], contracts(), title="Forty shapes", scope="a set", generated=NOW)
    store.close()
    return evidence_page(found)


def test_a_set_of_forty_shapes(show: Open, tmp_path: Path) -> None:
    page = show("forty", _set_of_forty(tmp_path))
    has_sections(page, *EVIDENCE)
    assert losses_first(page)[:2] == ["incorrect", "slower"]
    modes = [h.inner_text() for h in page.query_selector_all("#distributions h3")]
    assert modes == ["gemm_sm90, warm", "gemm_sm90, cold"]
    assert page.query_selector("#timelines svg.timeline .spans rect")
    fits(page)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1046, "height": 718})  # A4 landscape less its margins
    fits(page)
    assert page.query_selector("nav").is_visible() is False and page.query_selector("#t-speedups").is_visible()
    assert page.pdf()[:4] == b"%PDF"


def test_a_profile(show: Open) -> None:
    page = show("profile", timeline_page(profile(steps=64), source=GEMM, title="Profile of gemm_sm90"))
    has_sections(page, *PROFILE)
    fits(page)
    assert page.inner_text("#summary").startswith("Summary") and "tensor" in page.inner_text("#summary .facts")
    span = page.query_selector("svg.timeline .spans rect.k-compute")
    span.scroll_into_view_if_needed()
    span.hover()
    assert span.evaluate("e => e.matches(':hover')") and "wgmma" in span.query_selector("title").text_content()
    hot = page.query_selector(f"#L{GEMM[: GEMM.index('wgmma(acc')].count(chr(10)) + 1} svg.bar")
    assert hot.get_attribute("aria-label") == "100 % of the hottest line"


def test_zoom_and_line_filter(show: Open) -> None:
    page = show("zoom", timeline_page(profile(steps=64), source=GEMM, title="Profile"))
    picture = page.query_selector("svg.timeline")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    before = page.query_selector("svg.timeline .spans rect").bounding_box()["width"]
    page.mouse.wheel(0, -600)
    page.wait_for_function("document.querySelector('svg.timeline .spans').getAttribute('transform')")
    assert page.query_selector("svg.timeline .spans rect").bounding_box()["width"] > 2 * before
    page.select_option(".tools select", index=1)
    off, on = (page.locator(f"svg.timeline .spans rect{s}").count() for s in (".off", ":not(.off)"))
    assert off > on > 0
    page.click(".tools button")
    assert page.query_selector("svg.timeline .spans rect").bounding_box()["width"] == pytest.approx(before, rel=0.01)
    assert page.query_selector("svg.timeline .spans rect.off") is None


def test_without_script_the_page_is_complete(show: Open) -> None:
    page = show("no-script", timeline_page(profile(), source=GEMM, title="Profile"), java_script_enabled=False)
    assert page.locator("svg.timeline .spans rect").count() > 100 and not page.locator(".tools").is_visible()
    assert page.locator("h2").all_inner_texts() == list(PROFILE)


def test_a_comparison(show: Open) -> None:
    html = comparison_page(profile(), profile(slow=1.6), first_source=GEMM, second_source=GEMM, title="Two profiles")
    page = show("comparison", html)
    has_sections(page, "Summary", "Roles", "Lines", "Timelines")
    assert page.inner_text("#roles tbody tr:first-child th") == "producer: wait"
    assert len(page.query_selector_all("svg.timeline")) == 2
    fits(page)


def test_profiles_without_parts_say_why(show: Open) -> None:
    p = {
        **profile(),
        "timeline": {"unavailable": "the kernel has no marks"},
        "counters": {"unavailable": "no permission"},
    }
    page = show("bare", timeline_page({**p, "summary": "timed only"}, source="", title="Profile"))
    has_sections(page, *PROFILE)
    assert "the kernel has no marks" in page.inner_text("#timeline") and "no permission" in page.inner_text("#counters")


def test_nothing_stored(show: Open, tmp_path: Path) -> None:
    store = Store(tmp_path / "ws")
    found = collect.stored(store, [], contracts(), title="Evidence", scope="empty", generated=NOW, absent=["k.cake"])
    page = show("empty", evidence_page(found))
    has_sections(page, *EVIDENCE)
    assert "run cake bench k.cake" in page.inner_text("#speedups")
    fits(page)


def test_printed_pages_fit_the_paper(show: Open) -> None:
    for name, html in (
        ("print-evidence", _committed()[1]),
        ("print-profile", timeline_page(profile(), source=GEMM, title="P")),
    ):
        page = show(name, html, viewport={"width": 1046, "height": 718})
        page.emulate_media(media="print")
        fits(page)
        assert page.evaluate(
            "[...document.querySelectorAll('.scroll')].every(e => e.scrollHeight <= e.clientHeight + 2)"
        )


def test_dark_mode(show: Open) -> None:
    page = show("committed-light", evidence_page(collect.committed(contracts(), generated=NOW, kernels=["gemm_sm90"])))
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ink = "e => getComputedStyle(e).fill"
        seen[scheme] = (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            page.eval_on_selector("#roofline svg text", ink),
            page.eval_on_selector("#roofline svg .f-c0", ink),
        )
    if PICTURES:
        page.screenshot(path=OUT / "committed-dark.png", full_page=True)
    assert all(a != b for a, b in zip(seen["light"], seen["dark"], strict=True))
    assert seen["dark"][0] == "rgb(20, 23, 27)"


def test_hostile_text_is_shown_as_text(show: Open, tmp_path: Path) -> None:
    bad = profile(steps=3)
    bad["kernel"] = bad["shape"]["verdict"] = bad["secret"] = HOSTILE
    for x in (
        *bad["timeline"]["tracks"],
        *bad["timeline"]["marks"],
        *bad["timeline"]["roles"],
        *bad["timeline"]["lines"],
    ):
        x["role"] = HOSTILE
    bad["counters"]["metrics"] = {HOSTILE: {"value": HOSTILE, "unit": HOSTILE}}
    bad["summary"]["limiters"][0] |= {"op": HOSTILE, "what": HOSTILE, "evidence": HOSTILE}
    page = show("hostile-profile", timeline_page(bad, source=f"{HOSTILE}\n{GEMM}", title=HOSTILE))
    seen = HOSTILE[: HOSTILE.index("\x00")]
    assert seen in page.inner_text("h1") and seen in page.inner_text("#L1") and seen in page.title()
    store = Store(tmp_path / "ws")
    store.put_variant(VARIANT, "ir_" + "2" * 32, {}, "sm_90a", "<b>kernel</b>")
    raw = bench("x", [{**shape(256, "slower", 0.5, name=HOSTILE), "message": HOSTILE}])
    store.put_measurement(
        VARIANT, "gemm_bf16", {}, "d", "bench", "passed", {"raw": {**raw, "rule": HOSTILE, "secret": HOSTILE}}
    )
    found = collect.stored(store, [VARIANT], contracts(), title=HOSTILE, scope=HOSTILE, generated=NOW)
    evil = show("hostile-evidence", evidence_page(found))
    assert seen in evil.inner_text("#t-speedups") and "<b>kernel</b>" in evil.inner_text("#t-speedups")
    for p in (page, evil):
        assert "\u202e" not in p.content()  # turns what follows backwards
        assert p.evaluate("window.hit === undefined") and p.query_selector("img") is None
        fits(p)


def test_committed_profiles(show: Open) -> None:
    seen = set()
    for path in PROFILES:
        p = json.loads(path.read_text())
        entry = next(k for k in kernels() if k.name == p["kernel"])
        page = show(f"profile-{path.stem}", timeline_page(p, source=entry.text(), title=f"Profile of {p['kernel']}"))
        has_sections(page, *PROFILE)
        assert page.locator("svg.timeline .spans rect").count() > 10
        fits(page)
        seen.add(p["kernel"].split("_")[0])
    assert {"gemm", "kmeans"} <= seen
