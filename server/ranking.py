"""Several candidates at one shape, ordered by the model: the list form of `estimate_cost`.

Candidates are programs of their own, bindings of one program (listed sets, or every combination of values), or both. Each goes
through binding, quick gates and the model (`server.assess`); what fails stands in `rejected` and ranks nowhere. A few are
assessed here, many in CPU workers, so that the server keeps answering and a cancelled call ends its work.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import CakeError
from server.errors import BadArgument, Cancelled, EngineError
from server.estimating import check_extents, other_than_the_program
from server.fallback import or_unstored
from server.predictions import contracts_of_interest, history
from server.programs import Program, Ref, Value
from server.results import CONCISE_BYTES, DETAILED_BYTES, Detail, Result, clean, fit, size_of
from server.store import digest
from server.wording import counted, prior_row, prior_words
from server.worker import Control, run_worker

if TYPE_CHECKING:
    from server.engine import Engine

MOST = 200
"""Candidates of one call."""
HERE = 6
"""Candidates that are assessed in the server's own process: a worker takes half a second to start."""
WORKERS = 2
WORKER_S = 120.0
WAIT_S = 60.0
SHOWN: Mapping[str, tuple[int, int]] = {"concise": (8, 3), "detailed": (60, 20)}
"""Rows of the order and of the rejected in an answer; the artifact has all."""

_running = threading.Lock()


@dataclass(frozen=True)
class Request:
    """What is to be ordered: each of `bases` with each of `sets` and every combination of the values in `vary`."""

    bases: Sequence[Ref]
    sets: Sequence[Mapping[str, Value]] = ()
    vary: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    def refs(self) -> list[Ref]:
        """The candidates, in order. Raises BadArgument for none, or more than `MOST`."""
        empty = [clean(name, 64) for name, values in self.vary.items() if not values]
        if empty or not self.bases:
            what = f"vary gives no value for {', '.join(empty)}" if empty else "no program is named"
            raise BadArgument(what, "give a program with sets or vary, or several candidates")
        count = len(self.bases) * (len(self.sets) or 1) * math.prod(len(v) for v in self.vary.values())
        if count > MOST:
            raise BadArgument(f"{count} candidates; at most {MOST} a call", "narrow the values, or split the call")
        combinations = [dict(zip(self.vary, c, strict=True)) for c in itertools.product(*self.vary.values())]
        return [
            replace(base, bindings={**base.bindings, **own, **combination})
            for base in self.bases
            for own in (self.sets or [{}])
            for combination in combinations
        ]


@dataclass
class _Candidate:
    """numbers: its 1-based places in the request, several where they are one variant."""

    numbers: list[int]
    name: str
    text: str = ""
    variant_id: str = ""
    ir_id: str = ""
    kernel: str = ""
    target: str = ""
    bindings: dict[str, Value] = field(default_factory=dict)
    fault: dict[str, Any] | None = None
    found: dict[str, Any] = field(default_factory=dict)


def rank(
    engine: Engine, request: Request, shape: Mapping[str, int], device: str | None, l2: str, control: Control, detail: Detail
) -> Result:  # fmt: skip
    """Order candidates. Raises as `Request.refs`; what is wrong with one candidate is said of it in the answer."""

    refs = request.refs()
    shape = {clean(k, 64): v for k, v in shape.items()}
    check_extents(shape)
    return or_unstored(engine, lambda e: _rank(e, refs, len(request.bases) > 1, shape, device, l2, control, detail))


def _rank(
    engine: Engine, refs: Sequence[Ref], listed: bool, shape: dict[str, int], device: str | None, l2: str, control: Control,
    detail: Detail,
) -> Result:  # fmt: skip
    candidates = _resolve(engine, refs, listed, device)
    todo = [c for c in candidates if c.fault is None]
    _assess(engine, todo, shape, device, l2, control)
    engine.store.put_variants([(c.variant_id, c.ir_id, c.bindings, c.target, c.kernel) for c in todo])
    verified = {}
    for c in todo:
        verdict = engine.store.verdict(c.variant_id)
        verified[c.variant_id] = verdict is not None and verdict["status"] == "accepted"
        if verdict is not None and verdict["status"] == "rejected" and c.fault is None:
            rules = verdict["rules"]
            message = f"an earlier verify rejected it: {', '.join(rules)}"
            c.fault = {"rule": next(iter(rules), ""), "message": message, "line": 0}
    return _answer(engine, candidates, verified, len(refs), shape, l2, detail)


# ---- candidates ----------------------------------------------------------------------------------------------------


def _resolve(engine: Engine, refs: Sequence[Ref], listed: bool, device: str | None) -> list[_Candidate]:
    """Candidates with their variants; equal variants are one. A reference that cannot be resolved is a candidate with a fault.

    listed: the references name different programs. Raises EngineError where what is wrong is wrong for every candidate."""
    programs: dict[tuple[str, str | None], Program] = {}
    loaded: list[Program | EngineError] = []
    for ref in refs:
        try:
            key = (ref.id, ref.text)
            if key not in programs:
                programs[key] = engine.programs.load(ref)
            known = programs[key]  # a v_ id brings bindings of its own, so it is resolved each time
            loaded.append(engine.programs.load(ref) if ref.id.startswith("v_") else replace(known, ref=ref))
        except EngineError as exc:
            if not listed:
                raise
            loaded.append(exc)
    target = _common_target([p for p in loaded if isinstance(p, Program)], device)
    found: dict[str, _Candidate] = {}
    for number, program in enumerate(loaded, 1):
        name = f"#{number} {program.name}" if isinstance(program, Program) else f"#{number}"
        try:
            if isinstance(program, EngineError):
                raise program
            made = _candidate(engine, program, target, number, listed)
        except EngineError as exc:
            if not listed and exc.code in ("args/unknown-kernel", "args/kernel-needed"):
                raise
            made = _Candidate([number], name, fault={"rule": exc.code, "message": exc.message, "line": 0})
        same = found.setdefault(made.variant_id or f"#{number}", made)
        if same is not made:
            same.numbers.append(number)
    return list(found.values())


def _common_target(programs: Sequence[Program], device: str | None) -> str | None:
    """The first target that all kernels name and the device (where one is given) runs; None: each its own first. Times on different
    devices have no order."""
    from analyses.cost.calibration import find

    kernels = [
        k
        for p in programs
        if p.file is not None
        for k in p.file.kernels
        if p.ref.kernel in (None, k.name) and not p.ref.target
    ]
    for target in kernels[0].targets if kernels else ():
        if all(target in k.targets for k in kernels):
            try:
                find(target, device)
            except CakeError:
                continue
            return target
    return None


def _candidate(engine: Engine, program: Program, target: str | None, number: int, listed: bool) -> _Candidate:
    file = program.file
    if file is None:
        first = program.diagnostics[0]
        fault = {"rule": first.rule, "message": clean(first.message, 300), "line": first.span.line}
        return _Candidate([number], f"#{number}", fault=fault)
    from cake_ir import variant_id

    program = replace(program, ref=replace(program.ref, target=program.ref.target or target))
    chosen = engine.programs.chosen(program)
    if len(chosen) != 1:
        names = ", ".join(k for k, _, _ in chosen)
        raise BadArgument(
            f"the file has {len(chosen)} kernels: {names}", "name one: kernel=", code="args/kernel-needed"
        )
    kernel, target, bindings = chosen[0]
    words = " ".join(f"{k}={clean(str(v), 40)}" for k, v in bindings.items())
    name = f"#{number} {kernel} {words}".rstrip() if listed else words or "as written"
    v = variant_id(file, bindings, target, kernel)
    return _Candidate([number], name, program.text, v, program.ir_id, kernel, target, bindings)


def _assess(
    engine: Engine, todo: Sequence[_Candidate], shape: dict[str, int], device: str | None, l2: str, control: Control
) -> None:
    """Fill in what was found of each candidate, or its fault."""
    texts = list(dict.fromkeys(c.text for c in todo))
    numbers = {text: n for n, text in enumerate(texts)}
    job: dict[str, Any] = {
        "kind": "assess", "shape": shape, "device": device, "l2": l2, "contracts_dir": engine.config.contracts_path,
        "contracts": contracts_of_interest(engine.store),
    }  # fmt: skip
    items = [{"text": numbers[c.text], "bindings": c.bindings, "target": c.target, "kernel": c.kernel} for c in todo]
    whole = {**job, "texts": texts, "items": items}
    with _one_at_a_time(control):
        outcomes = _here(engine, whole, control) if len(todo) <= HERE else _in_workers(whole, control)
    for c, outcome in zip(todo, outcomes, strict=True):
        if "estimate" in outcome:
            c.found = outcome
        else:
            c.fault = outcome


@contextmanager
def _one_at_a_time(control: Control) -> Iterator[None]:
    """Two rankings at once would share the processors that one was promised. Raises Cancelled, or server/busy after `WAIT_S`."""
    waited = 0.0
    while not _running.acquire(timeout=0.1):
        control.check()
        waited += 0.1
        if waited > WAIT_S:
            raise EngineError(
                "server/busy", f"another ranking has been running for over {WAIT_S:.0f} s", "try again later"
            )
    try:
        yield
    finally:
        _running.release()


def _here(engine: Engine, job: dict[str, Any], control: Control) -> list[dict[str, Any]]:
    from server.assess import assess

    def each(done: int) -> None:
        control.progress(done, len(job["items"]), "estimating")

    return assess(job, engine.catalog.contract_registry() if job["contracts"] else {}, each)


def _in_workers(job: dict[str, Any], control: Control) -> list[dict[str, Any]]:
    """The candidates dealt out to as many CPU workers as there are processors to use. What a worker that died was to assess has its
    end as the fault; a cancelled call ends them all."""
    items = job["items"]
    count = max(1, min(WORKERS, len(os.sched_getaffinity(0))))
    parts = [items[n::count] for n in range(count)]
    done, lock = [0] * count, threading.Lock()

    def run(n: int) -> list[dict[str, Any]]:
        def progress(at: float, total: float | None, message: str) -> None:
            with lock:
                done[n] = int(at)
                control.progress(sum(done), len(items), message)

        own = Control(control.cancel, progress)
        try:
            # one thread per worker: the libraries would start as many as there are processors in each
            env = {"OPENBLAS_NUM_THREADS": "1"}
            part = {**job, "items": parts[n]}
            return run_worker("server.cpu_main", part, timeout_s=WORKER_S, control=own, env=env)["outcomes"]
        except Cancelled:
            raise
        except EngineError as exc:
            return [{"rule": exc.code, "message": exc.message, "line": 0}] * len(parts[n])

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(run, range(count)))
    return [answers[n % count][n // count] for n in range(len(items))]


# ---- the answer ----------------------------------------------------------------------------------------------------


def _answer(
    engine: Engine, candidates: Sequence[_Candidate], verified: Mapping[str, bool], asked: int, shape: Mapping[str, int], l2: str,
    detail: Detail,
) -> Result:  # fmt: skip
    from analyses.cost.estimate import Estimate
    from analyses.cost.rank import rank as order

    good = {c.variant_id: c for c in candidates if c.fault is None}
    bad = [
        {"name": c.name, **({"variant_id": c.variant_id} if c.variant_id else {}), **c.fault}
        for c in candidates
        if c.fault is not None
    ]
    estimates = [(v, Estimate(**c.found["estimate"])) for v, c in good.items()]
    devices = {e.device for _, e in estimates}
    if len(devices) > 1:
        raise BadArgument(
            f"the candidates run on different devices: {', '.join(sorted(devices))}",
            "name one target or device for all of them",
        )
    if not estimates:
        return _none_ranks(bad, asked, detail)
    device = devices.pop()
    prior = history(engine.store, [(c.kernel, c.found["contracts"]) for c in good.values()], device, l2)
    ranking = order(estimates, prior)
    rows = []
    for number, p in enumerate(ranking.places, 1):
        c, e = good[p.name], p.estimate
        row = {"place": number, "name": c.name, "time_us": e.time_us, "low_us": e.low_us, "high_us": e.high_us}
        row |= {"times_best": round(p.times_best, 3), "bound": e.bound_class, "tied": p.tied or None}
        row |= {"verified": verified[p.name] or None, "variant_id": p.name}
        row["also"] = [f"#{n}" for n in c.numbers[1:]] if c.name.startswith("#") and c.numbers[1:] else None
        rows.append({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items() if v is not None})
    first = ranking.places[0].estimate
    result = Result(summary="", status="ok")
    known = sum(bool(r.get("verified")) for r in rows)
    counts = {
        "asked": asked,
        "ranked": len(rows),
        "rejected": len(bad),
        "merged": asked - len(candidates),
        "verified": known,
    }
    result.data = {
        "shape": dict(shape), "device": device, "l2": l2, "calibrated": first.calibrated, "counts": counts,
        "contenders": ranking.contenders, "resolution": prior.resolution,
        "ranking": rows, "rejected": bad, "prior": [prior_row(p) for p in prior.priors], "prior_note": prior.note,
    }  # fmt: skip
    result.data = {k: v for k, v in result.data.items() if v not in (None, [], "")}
    result.summary = _summary(rows, result.data, first, prior)
    result.next = _next(rows, ranking.contenders)
    owner = digest("r", [r["variant_id"] for r in rows], dict(shape), device, l2)
    every = [{"variant_id": v, "bindings": c.bindings, **c.found["estimate"]} for v, c in good.items()]
    whole = {**result.data, "estimates": every}
    result.artifacts = [engine.store.put_artifact(owner, "ranking", json.dumps(whole, indent=1, ensure_ascii=False))]
    return _shortened(result, detail)


def _none_ranks(bad: list[dict[str, Any]], asked: int, detail: Detail) -> Result:

    first = bad[0]
    where = f" at line {first['line']}" if first["line"] else ""
    why = f"{first['rule']}: {clean(first['message'], 200)}"
    result = Result(
        summary=f"none of {counted(asked, 'candidate')} ranks; the first{where}: {why}",
        status="rejected", data={"counts": {"asked": asked, "ranked": 0, "rejected": len(bad)}, "rejected": bad},
        next=other_than_the_program(first["rule"])
        or "repair the programs (verify says more), or give bindings and a shape that they admit",
    )  # fmt: skip
    return _shortened(result, detail)


def _summary(rows: Sequence[Mapping[str, Any]], data: Mapping[str, Any], first: Any, prior: Any) -> str:
    dims = ",".join(f"{k}={v}" for k, v in data["shape"].items())
    best = rows[0]
    span = f" ({best['low_us']:.4g} to {best['high_us']:.4g})" if "high_us" in best else ""
    words = (
        f"{len(rows)} of {counted(data['counts']['asked'], 'candidate')} ordered at {dims} on {data['device']}, L2 {data['l2']}: first "
        f"{best['name']}, predicted {best['time_us']:.4g} us{span}, bound by {best['bound']}"
    )
    if data["contenders"] > 1:
        words += f"; the first {data['contenders']} are not told apart"
    counts = data["counts"]
    words += f"; {counts['verified']} verified before, the others by the quick gates only"
    words += f"; {counts['rejected']} rejected" if counts["rejected"] else ""
    words += f"; {counts['merged']} merged as the same variant" if counts["merged"] else ""
    words += "" if first.calibrated else "; rates of the data sheet, not measured: bounds, and no evidence of an order"
    return f"{words}. {prior_words(prior)}. Predictions, not measurements"


def _next(rows: Sequence[Mapping[str, Any]], contenders: int) -> str:
    best = rows[0]
    handle = f"ir_id={best['variant_id']!r}"
    step = f"compile_and_bench({handle}, contract=...)" if best.get("verified") else f"verify({handle})"
    more = f"; measure the first {contenders}, which the model does not tell apart" if contenders > 1 else ""
    return step + more


def _shortened(result: Result, detail: Detail) -> Result:
    """At most so many rows, fewer where they are long; `left_out` counts the rest."""
    budget = CONCISE_BYTES if detail == "concise" else DETAILED_BYTES
    data = result.data
    whole = {key: len(data.get(key, ())) for key in ("ranking", "rejected")}
    for key, most in zip(whole, SHOWN[detail], strict=True):
        if key in data:
            data[key] = data[key][:most]

    def count() -> None:
        rest = {key: n - len(data.get(key, ())) for key, n in whole.items()}
        if any(rest.values()):
            data["not_shown"] = {k: n for k, n in rest.items() if n}

    count()
    while size_of(result.compact()) > budget:
        key = max(("ranking", "rejected"), key=lambda k: len(data.get(k, ())))
        if len(data.get(key, ())) <= 1:
            break
        data[key] = data[key][:-1]
        count()
    return fit(result, detail)
