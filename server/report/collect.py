"""From evidence to the report's model: rows of the workspace's store, committed rows of corpus/results.

A record that does not fit is skipped and named on the page, never fatal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError
from server import __version__
from server.report import records, units
from server.report.model import Evidence, Judgement, Provenance, Resources, StoredProfile, Subject, Timing, overall
from server.report.records import MISFIT, Work
from server.steps import verdictless
from server.store import Store

if TYPE_CHECKING:
    from corpus.contract import Contract

SECTIONS = ("timings", "judgements", "resources", "profiles", "roofline")


class _Page:
    """Collects the parts of one page and the words for what is missing."""

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self.contracts = contracts
        self.timings: list[Timing] = []
        self.judgements: list[Judgement] = []
        self.resources: list[Resources] = []
        self.profiles: list[StoredProfile] = []
        self.missing: dict[str, list[str]] = {name: [] for name in SECTIONS}

    def work(self, contract: str, shape: dict[str, int], dtypes: Mapping[str, str]) -> Work:
        """(FLOP, bytes, unit of the FLOP) of a shape by its contract; zeros when the contract is not here or refuses."""
        spec = self.contracts.get(contract)
        if spec is None:
            self._say("roofline", f"contract {contract} is not known here, so its kernels have no work per byte")
            return 0.0, 0.0, ""
        try:
            return float(spec.flops(shape)), float(spec.bytes(shape, dtypes)), spec.flop_unit
        except (CakeError, *MISFIT) as exc:
            self._say("roofline", f"contract {contract} does not count the work of {units.pairs(shape)}: {exc}")
            return 0.0, 0.0, ""

    def skip(self, section: str, what: str, exc: Exception) -> None:
        self._say(section, f"{what} is not in a form that this version reads ({type(exc).__name__}: {exc})")

    def _say(self, section: str, text: str) -> None:
        if text not in self.missing[section]:
            self.missing[section].append(text)

    def done(self, title: str, scope: str, generated: str) -> Evidence:
        return Evidence(
            title=title,
            scope=scope,
            generated=generated,
            version=__version__,
            timings=tuple(self.timings),
            judgements=tuple(self.judgements),
            resources=tuple(self.resources),
            profiles=tuple(self.profiles),
            missing={k: tuple(v) for k, v in self.missing.items()},
        )


# ---- the workspace -------------------------------------------------------------------------------------------------


def stored(
    store: Store, variants: Sequence[str], contracts: Mapping[str, Contract], *, title: str, scope: str, generated: str,
    contract: str | None = None, absent: Sequence[str] = (),
) -> Evidence:  # fmt: skip
    """The evidence of some variants. Of the same shape, mode and device the latest timing counts.

    variants: `v_` ids of the store. contract: only measurements under this one. absent: what was asked for and has none.
    """
    page = _Page(contracts)
    for section, command in (
        ("timings", "bench"),
        ("judgements", "check"),
        ("resources", "build"),
        ("profiles", "profile"),
    ):
        under = "" if command == "build" else f" --contract {contract or 'C'}"
        page.missing[section] += [
            f"this workspace has nothing of {name}; run cake {command} {name}{under}" for name in absent
        ]
    for variant_id in variants:
        _variant(page, store, variant_id, contract)
    return page.done(title, scope, generated)


def _variant(page: _Page, store: Store, variant_id: str, contract: str | None) -> None:
    row = store.variant(variant_id)
    if row is None:
        return
    builds = store.builds(variant_id)
    # The newest build tells which cubin a variant has today.
    record = builds[-1]["record"] if builds else {}
    base = Subject(
        kernel=row["kernel"], contract=contract or "", content_id=row["ir_id"], variant_id=variant_id,
        target=row["target"], bindings=row["bindings"], compiler=f"NVRTC {record['nvrtc']}" if record.get("nvrtc") else "",
        cubin_sha256=str(record.get("cubin_sha256", "")),
    )  # fmt: skip
    found = store.source_of(row["ir_id"])
    text = found[1] if found else ""
    timings: dict[tuple[str, ...], Timing] = {}
    profiles: dict[tuple[str, str], StoredProfile] = {}
    for m in store.measurements(variant_id, contract):
        try:
            _measurement(page, base, m, text, timings, profiles)
        except MISFIT as exc:
            section = {"bench": "timings", "profile": "profiles"}.get(m["kind"], "judgements")
            page.skip(section, f"{m['kind']} record {m['measurement_id']}", exc)
    page.timings += timings.values()
    page.profiles += profiles.values()
    for b in builds[-1:]:
        try:
            page.resources.append(
                records.resources(base, b, records.roles(text, row["bindings"], row["target"], row["kernel"]))
            )
        except MISFIT as exc:
            page.skip("resources", f"build {b['build_id']}", exc)
    _missing(page, base, builds, timings, profiles)


def _missing(
    page: _Page, s: Subject, builds: list[Any], timings: Mapping[Any, Any], profiles: Mapping[Any, Any]
) -> None:
    """Words for what a variant has no evidence of, with the command that makes it."""
    options = "".join(f" --set {k}={v}" for k, v in s.bindings.items()) + (f" --target {s.target}" if s.target else "")
    name = f"{s.kernel} ({s.variant_id[:14]})"
    under = f" --contract {s.contract or 'C'}"
    if not builds:
        page.missing["resources"].append(f"no build stored for {name}; run cake build FILE{options}")
    if not timings:
        page.missing["timings"].append(
            f"no timing stored for {name}; run cake bench FILE{under}{options} on a machine with the GPU"
        )
    if not profiles:
        page.missing["profiles"].append(
            f"no profile stored for {name}; run cake profile FILE{under}{options} on a machine with the GPU"
        )
    if not [j for j in page.judgements if j.subject.variant_id == s.variant_id]:
        page.missing["judgements"].append(f"no check stored for {name}; run cake check FILE{under}{options}")


def _measurement(
    page: _Page, base: Subject, m: Mapping[str, Any], text: str, timings: dict[Any, Timing], profiles: dict[Any, StoredProfile]
) -> None:  # fmt: skip
    raw = m["record"]["raw"]
    device = raw.get("device") if isinstance(raw.get("device"), Mapping) else {}
    subject = replace(base, contract=m["contract"], contract_digest=str(m["record"].get("contract_digest", "")))
    spec = page.contracts.get(subject.contract)
    changed = spec is not None and subject.contract_digest not in ("", spec.digest)
    provenance = Provenance(
        device=str(device.get("name", m["device"])), driver=str(device.get("driver", "")), date=units.when(m["created"]),
        command=_command(m["kind"], subject), seed=records.text_of(raw.get("seed")), secret=records.text_of(raw.get("secret")),
        stale=f"the contract has changed: it is {spec.digest} now" if changed and spec else None,
    )  # fmt: skip
    if m["kind"] == "bench":
        for s in raw["shapes"]:
            try:
                work = page.work(subject.contract, s["shape"], s.get("dtypes", {}))
                timing = records.timing(subject, provenance, s, str(raw.get("rule", "")), work)
            except MISFIT as exc:  # the other shapes still count
                page.skip("timings", f"a shape of bench record {m['measurement_id']}", exc)
                continue
            timings[(timing.subject.contract, timing.shape, timing.dtypes, timing.mode, provenance.device)] = timing
    elif m["kind"] == "profile":
        if "timeline" in raw:
            shape = raw.get("shape") or {}
            key = (subject.contract, units.pairs(shape.get("shape", {})))
            profiles[key] = StoredProfile(subject, provenance, raw, text)
    elif m["kind"] == "sanitize":
        page.judgements.append(records.second_opinion(subject, provenance, raw))
    else:
        page.judgements.append(records.judgement(subject, provenance, m, raw))


def _command(kind: str, s: Subject) -> str:
    words = {"check-cpu": "check", "check-gpu": "check --on gpu", "sanitize": "check --on gpu --sanitize all"}.get(
        kind, kind
    )
    return f"cake {words} --contract {s.contract}"


# ---- committed rows ------------------------------------------------------------------------------------------------


def committed(
    contracts: Mapping[str, Contract], *, generated: str, kernels: Sequence[str] = (), contract: str | None = None,
    store: Store | None = None, directory: Path | None = None,
) -> Evidence:  # fmt: skip
    """The rows of corpus/results. kernels: only these names (all when empty). store: where builds of the same cubins lie.

    Raises CakeError `corpus/bad-results` naming a damaged file.
    """
    from corpus import evidence

    directory = directory or evidence.DIRECTORY
    page = _Page(contracts)
    rows = [r.model_dump(mode="json") for r in evidence.results(directory)]
    rows = [r for r in rows if _wanted(r, kernels, contract)]
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        one = (r["kernel"], r["variant_id"], r["shape"], r["dtypes"], r["mode"], r["device"], r["evidence"]["date"])
        groups.setdefault(json.dumps(one, sort_keys=True), []).append(r)
    for g in groups.values():
        try:
            page.timings.append(_committed_timing(page, g))
        except MISFIT as exc:
            page.skip("timings", f"a committed timing of {g[0]['kernel']}", exc)
    for c in (row.model_dump(mode="json") for row in evidence.read_checks(directory)):
        if _wanted(c, kernels, contract):
            page.judgements.append(_committed_check(c))
    page.profiles = _committed_profiles(page, directory / "profiles", kernels, contract)
    _committed_builds(page, store)
    if not page.timings:
        page.missing["timings"].append(
            f"no committed timing of {', '.join(kernels) or 'any kernel'}; `cake results` lists what there is"
        )
    if not page.judgements:
        page.missing["judgements"].append("no committed check; corpus/results/checks.json has none of these kernels")
    if not page.profiles:
        page.missing["profiles"].append(
            "no committed profile of these kernels; run cake profile FILE --contract C on a machine with the GPU"
        )
    names = f"kernel {', '.join(kernels)}" if kernels else "all kernels"
    scope = f"committed rows of corpus/results, {names}" + (f", contract {contract}" if contract else "")
    return page.done("Committed evidence", scope, generated)


def _wanted(row: Mapping[str, Any], kernels: Sequence[str], contract: str | None) -> bool:
    return (not kernels or row["kernel"] in kernels) and contract in (None, row["contract"])


def _committed_subject(r: Mapping[str, Any]) -> Subject:
    names = (
        "kernel",
        "contract",
        "contract_digest",
        "content_id",
        "variant_id",
        "target",
        "bindings",
        "compiler",
        "cubin_sha256",
    )
    return Subject(**{k: r[k] for k in names if k in r})


def _committed_provenance(r: Mapping[str, Any]) -> Provenance:
    settings = records.settings(r.get("conditions", {}))
    return Provenance(
        device=r["device"], driver=r["driver"], command=r["evidence"]["command"], date=r["evidence"]["date"],
        commit=r["evidence"]["commit"], seed=records.text_of(r.get("seed", settings.get("seed"))), secret=records.text_of(r.get("secret")),
        stale=r.get("stale"),
    )  # fmt: skip


def _committed_timing(page: _Page, group: Sequence[Mapping[str, Any]]) -> Timing:
    """The rows of one shape and mode, one per baseline."""
    r = group[0]
    comparisons = tuple(
        records.comparison(
            {
                "name": b["baseline"], "samples_us": b["baseline_samples_us"], "median_us": b["baseline_us"], "batch": b["batch"],
                "versions": b["baseline_versions"], "ratio": b["ratio"], "ratio_low": (b["ratio_interval"] or (None, None))[0],
                "ratio_high": (b["ratio_interval"] or (None, None))[1], "comparison": b["verdict"],
                "computes": b["baseline_verdict"] != "yardstick", "verdict": b["baseline_verdict"],
            }
        )
        for b in group
        if b["baseline"]
    )  # fmt: skip
    flops, moved, unit = page.work(r["contract"], r["shape"], r["dtypes"])
    return Timing(
        subject=_committed_subject(r), provenance=_committed_provenance(r), shape=units.pairs(r["shape"]), mode=r["mode"],
        verdict=overall("measured", comparisons), dtypes=units.pairs(r["dtypes"]) if r["dtypes"] else "", method=r["method"],
        rule=r["rule"], candidate=records.contender({**r, "name": "candidate", "median_us": r["time_us"]}),
        comparisons=comparisons, floor_us=r["floor_us"], flops=flops, bytes=moved, flop_unit=unit,
        checks=tuple((what, verdict) for what, _, verdict in (c.partition(": ") for c in r["checks"].split("; ") if c)),
        conditions=records.conditions(r["conditions"]),
    )  # fmt: skip


def _committed_check(c: Mapping[str, Any]) -> Judgement:
    from corpus.evidence import outdated

    return Judgement(
        subject=_committed_subject(c), provenance=_committed_provenance({**c, "stale": outdated(c)}),
        where=c["device"], verdict="passed" if c["passed"] else "failed", summary=verdictless(c["summary"]), cases=c["cases"],
        shapes=len(c["shapes"]), distributions=tuple(c["distributions"]), judge=c["judge"],
    )  # fmt: skip


def _committed_profiles(page: _Page, folder: Path, kernels: Sequence[str], contract: str | None) -> list[StoredProfile]:
    """Profiles under corpus/results/profiles, each one `Profile` as JSON, with the text of its corpus kernel."""
    from corpus.evidence import outdated
    from corpus.kernels import kernels as corpus_kernels

    texts = {k.name: k.text() for k in corpus_kernels()}
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            p = json.loads(path.read_text(encoding="utf-8"))
            if "timeline" not in p or not _wanted(p, kernels, contract):
                continue
            device = p.get("device") or {}
            meta = p.get("evidence") or {}
            subject = _committed_subject({**p, "contract_digest": str(p.get("contract_digest", ""))})
            provenance = Provenance(
                device=str(device.get("name", "")), driver=str(device.get("driver", "")), date=str(meta.get("date", "")),
                command=str(meta.get("command", "")), commit=str(meta.get("commit", "")), seed=records.text_of(p.get("seed")),
                secret=records.text_of(p.get("secret")), stale=outdated(p) if p.get("content_id") else None,
            )  # fmt: skip
            found.append(StoredProfile(subject, provenance, p, texts.get(p["kernel"], "")))
        except MISFIT as exc:
            page.skip("profiles", f"profiles/{path.name}", exc)
    return found


def _committed_builds(page: _Page, store: Store | None) -> None:
    """Builds of the measured cubins, if this workspace has made them: a cubin is the same wherever it is compiled."""
    from corpus.kernels import kernels as corpus_kernels

    known = {b["record"].get("cubin_sha256"): b for b in store.builds()} if store is not None else {}
    texts = {k.name: k for k in corpus_kernels()}
    seen: set[tuple[str, str]] = set()
    for s in [x.subject for x in (*page.timings, *page.judgements, *page.profiles)]:
        if (s.kernel, s.cubin_sha256) in seen:
            continue
        seen.add((s.kernel, s.cubin_sha256))
        entry = texts.get(s.kernel)
        b = known.get(s.cubin_sha256)
        if b is None:
            file = f"corpus/kernels/{entry.file}" if entry else "FILE"
            target = f" --target {s.target}" if s.target else ""
            target += "".join(f" --set {name}={value}" for name, value in s.bindings.items())
            page.missing["resources"].append(
                f"no build of {s.kernel} with cubin {s.cubin_sha256[:12]} in this workspace; run cake build {file}{target}"
            )
            continue
        roles = records.roles(entry.text(), s.bindings, s.target, entry.kernel) if entry else ()
        try:
            page.resources.append(records.resources(s, b, roles))
        except MISFIT as exc:
            page.skip("resources", f"build {b['build_id']}", exc)
