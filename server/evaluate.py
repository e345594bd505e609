"""Compile, check, time and profile: everything that runs in a worker process.

Order of work for `compile_and_bench`: gates, compile, check by interpretation, check on the GPU, timing. The first step
that fails ends it. Evidence already stored for the same variant, contract, shapes and kind is answered from the store
unless `fresh` is asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cake_ir.diagnostics import Diagnostic
from server import __version__
from server.errors import BadArgument, Missing
from server.fallback import or_unstored
from server.gpu_work import COMPILE_TIMEOUT_S, NO_GPU, NO_GPU_NEXT, GpuWork, as_error, bench_row, device_name, job_of
from server.predictions import mispredicted_next, model_row, outside, predicted
from server.programs import Program, Ref, Unit
from server.results import Artifact, Detail, Result, add_diagnostics, clean, fit, plain
from server.second_opinion import ask, tools_of
from server.shapes import Shapes, interpretable, refuse_large, shape_list, unchecked
from server.steps import case_words, counts, joined, resource_words, verdictless
from server.store import digest
from server.wording import counted, label
from server.worker import Control

if TYPE_CHECKING:
    from corpus.sanitizer import Tool

Until = Literal["compile", "check", "bench"]

CHECK_TIMEOUT_S = 900.0


class Evaluator(GpuWork):
    """Runs workers for the engine and turns what they say into results and evidence."""

    # ---- build -----------------------------------------------------------------------------------------------------

    def build(self, ref: Ref, control: Control | None = None, detail: Detail = "concise") -> Result:
        """Lower and compile one accepted kernel. Works without a GPU."""
        control = control or Control()
        return or_unstored(self._engine, lambda e: e.evaluate._built(ref, control, detail))

    def _built(self, ref: Ref, control: Control, detail: Detail) -> Result:
        program = self._engine.programs.load(ref)
        refused = self._engine.rejection(program, detail)
        if refused is not None:
            return refused
        unit = self._engine.accepted_unit(program)
        return self._labelled(unit, self._build(program, unit, control, detail), detail)

    def _build(self, program: Program, unit: Unit, control: Control, detail: Detail) -> Result:
        control.progress(0, None, f"compiling {unit.kernel} for {unit.target}")
        job = {
            **job_of(program, unit),
            "kind": "build",
            "cache_dir": str(self._engine.cubin_dir()),
            "timeout_s": COMPILE_TIMEOUT_S - 10,
        }
        raw = self.run_cpu(unit, job, COMPILE_TIMEOUT_S, control)
        result = Result(summary="", status="failed", ids={**program.ids, "variant_id": unit.variant_id})
        if "diagnostic" in raw:
            found = Diagnostic.model_validate(raw["diagnostic"])
            add_diagnostics(result, [found], program.text, detail)
            result.summary = f"{unit.kernel} was accepted but does not compile: {clean(found.message, 200)}"
            result.next = (
                "an accepted program that does not compile is a missing rule: report_failure (symptom compile_error)"
            )
            return result
        cubin = base64.b64decode(raw["cubin"])
        sha = hashlib.sha256(cubin).hexdigest()
        build_id = digest("b", unit.variant_id, sha)
        store = self._engine.store
        for kind in ("cuda", "ptx", "sass", "log"):
            if raw.get(kind):
                result.artifacts.append(store.put_artifact(build_id, kind, raw[kind]))
        result.artifacts.append(store.put_artifact(build_id, "cubin", cubin))
        diagnostics = [Diagnostic.model_validate(d) for d in raw["diagnostics"]]
        broken = [d for d in diagnostics if d.severity == "error"]
        result.status = "failed" if broken else "passed"
        result.ids["build_id"] = build_id
        result.data = {**raw["report"], "promised_instructions": raw["promised"]}
        if detail == "concise":
            result.data.pop("instructions", None)
        add_diagnostics(result, diagnostics, program.text, detail)
        what = "compiled, but " + clean(broken[0].message, 200) if broken else "compiled"
        result.summary = f"{unit.kernel} for {unit.target} {what}{resource_words(raw['report'])}"
        result.next = "" if broken else f"compile_and_bench(ir_id={program.ir_id!r}, contract=...) checks and times it"
        report = {**plain(raw["report"]), "undecided": self._engine.undecided(unit)}
        store.put_build(build_id, unit.variant_id, unit.target, result.status, report)
        return result

    # ---- check -----------------------------------------------------------------------------------------------------

    def check(
        self,
        ref: Ref,
        contract: str,
        shapes: Shapes = "boundary",
        *,
        on: Literal["cpu", "gpu"] = "cpu",
        fresh: bool = False,
        sanitize: Sequence[str] = (),
        control: Control | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Compare an accepted kernel with its contract's oracle, by interpretation or on the GPU.

        sanitize: tools of compute-sanitizer that give a second opinion after a check on the GPU that passed.
        """
        control = control or Control()
        tools = tools_of(sanitize)
        if tools and on == "cpu":
            raise BadArgument("sanitize watches a launch on the GPU", "add --on gpu")
        if on == "cpu":
            return or_unstored(
                self._engine, lambda e: e.evaluate._checked(ref, contract, shapes, fresh, control, detail)
            )
        return self._on_gpu(
            ref,
            contract,
            "checking on the GPU",
            shapes,
            control,
            detail,
            lambda p, u, s: self._watched(
                self._check_gpu(p, u, s, shapes, fresh, control, detail), p, u, s, shapes, tools, fresh, control, detail
            ),
        )

    def _checked(
        self, ref: Ref, contract: str, shapes: Shapes, fresh: bool, control: Control, detail: Detail
    ) -> Result:
        program = self._engine.programs.load(ref)
        spec = self._engine.catalog.contract(contract)
        refused = self._engine.rejection(program, detail)
        if refused is not None:
            return refused
        unit = self._engine.accepted_unit(program)
        return self._labelled(unit, self._check_cpu(program, unit, spec, shapes, fresh, control, detail), detail)

    def _check_cpu(
        self, program: Program, unit: Unit, spec: Any, shapes: Shapes, fresh: bool, control: Control, detail: Detail
    ) -> Result:
        wanted = shape_list(spec, shapes)
        refuse_large(spec, wanted)
        known = None if fresh else self.stored(unit, spec, "check-cpu", {"shapes": wanted})
        if known is None:
            job = {
                **job_of(program, unit),
                "kind": "check",
                "contract": spec.name,
                "shapes": wanted,
                "budget_s": CHECK_TIMEOUT_S / 2,
                "contracts_dir": self._engine.config.contracts_path,
            }
            raw = self.run_cpu(unit, job, CHECK_TIMEOUT_S, control)
            if "diagnostic" in raw:
                raise as_error(Diagnostic.model_validate(raw["diagnostic"]))
            known = raw
            self.keep(unit, spec, "check-cpu", {"shapes": wanted}, "cpu", "passed" if raw["passed"] else "failed", raw)
            known["reused"] = False
        return self._check_result(program, unit, spec, known, "by interpretation", detail)

    def _check_result(
        self, program: Program, unit: Unit, spec: Any, raw: Mapping[str, Any], how: str, detail: Detail
    ) -> Result:
        ok = bool(raw["passed"])
        result = Result(
            summary=f"{unit.kernel} against {spec.name} {how}: {verdictless(raw['summary'])}",
            status="passed" if ok else "failed",
            ids={**program.ids, "variant_id": unit.variant_id},
        )
        cases = raw.get("cases", [])
        bad = [c for c in cases if c["verdict"] in ("failed", "error")]
        result.data = {
            "contract": spec.name,
            "contract_digest": raw.get("contract_digest", ""),
            "reused": bool(raw.get("reused")),
            "seed": raw.get("seed"),
            "counts": counts(cases),
            "failed": [case_words(c) for c in bad[: 5 if detail == "detailed" else 2]],
        }
        if raw.get("soak"):
            result.data["soak"] = raw["soak"]
        large = [c["shape"] for c in cases if c.get("cause") == "too-large"]
        if large:
            result.data["too_large"] = [s for i, s in enumerate(large) if s not in large[:i]]
        if detail == "detailed":
            result.data["cases"] = plain(cases)
        result.artifacts = [
            self._engine.store.put_artifact(unit.variant_id, f"check-{raw.get('on', 'cpu')}", json.dumps(raw, indent=1))
        ]
        located = [*raw.get("diagnostics", []), *(c["diagnostic"] for c in bad if c.get("diagnostic"))]
        add_diagnostics(result, [Diagnostic.model_validate(d) for d in located], program.text, detail)
        base = program.ir_id
        result.next = (
            f"compile_and_bench(ir_id={base!r}, contract={spec.name!r})"
            if ok
            else f"repair with propose_ir(base_id={base!r}, edits=[...]); `failed` in data has the worst elements"
        )
        return result

    # ---- GPU -------------------------------------------------------------------------------------------------------

    def bench(
        self,
        ref: Ref,
        contract: str,
        shapes: Shapes = "tuning",
        *,
        fresh: bool = False,
        control: Control | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Time an accepted kernel beside the contract's baselines."""
        control = control or Control()
        return self._on_gpu(
            ref,
            contract,
            "timing",
            shapes,
            control,
            detail,
            lambda p, u, s: self._bench(p, u, s, shapes, fresh, control, detail),
        )

    def profile(
        self,
        ref: Ref,
        contract: str,
        shape: Mapping[str, int],
        *,
        compare_with: str = "",
        compare_anyway: bool = False,
        control: Control | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Profile an accepted kernel at one shape (the contract's first tuning shape when none is given), and set it
        beside the stored profile `compare_with`; see server.profiling."""
        from server.profiling import profile, reference

        control = control or Control()
        if compare_with:
            reference(self, compare_with)  # a wrong id is said first, also on a machine without a GPU
        return self._on_gpu(
            ref,
            contract,
            "profiling",
            [shape] if shape else "tuning",
            control,
            detail,
            lambda p, u, s: profile(self, p, u, s, shape, control, detail, compare_with, compare_anyway),
        )

    def _on_gpu(
        self,
        ref: Ref,
        contract: str,
        what: str,
        shapes: Shapes,
        control: Control,
        detail: Detail,
        work: Callable[[Program, Unit, Any], Result],
    ) -> Result:
        """The gates first, so that a machine without a GPU still says what is wrong with program and arguments."""
        program = self._engine.programs.load(ref)
        spec = self._engine.catalog.contract(contract)
        shape_list(spec, shapes)
        refused = self._engine.rejection(program, detail)
        if refused is not None:
            return refused
        if not self._engine.catalog.gpu_indices():
            return self.unavailable(program, self._engine.accepted_unit(program), what)
        self._engine.store.require()
        program = self.for_device(program, control)
        refused = self._engine.rejection(program, detail)
        if refused is not None:
            return refused
        unit = self._engine.accepted_unit(program)
        return self._labelled(unit, work(program, unit, spec), detail)

    def _labelled(self, unit: Unit, result: Result, detail: Detail) -> Result:
        """Fitted, with what is undecided about the kernel: evidence of a run is no proof of it."""
        return fit(label(result, self._engine.undecided(unit)), detail)

    def _check_gpu(
        self, program: Program, unit: Unit, spec: Any, shapes: Shapes, fresh: bool, control: Control, detail: Detail
    ) -> Result:
        wanted = shape_list(spec, shapes)
        known = None if fresh else self.stored(unit, spec, "check-gpu", {"shapes": wanted})
        if known is None:
            known = self.run_gpu(program, unit, spec, "check", wanted, control)
            verdict = "passed" if known["passed"] else "failed"
            self.keep(unit, spec, "check-gpu", {"shapes": wanted}, device_name(known), verdict, known)
        return self._check_result(program, unit, spec, known, f"on {device_name(known)}", detail)

    def _watched(
        self, done: Result, program: Program, unit: Unit, spec: Any, shapes: Shapes | None, tools: Sequence[Tool],
        fresh: bool, control: Control, detail: Detail,
    ) -> Result:  # fmt: skip
        """What was done, joined by the second opinion where one is asked for. A tool that cannot run is named, no failure."""
        if not tools or done.status != "passed":
            return done
        part = ask(self, program, unit, spec, shapes, tools, fresh, control, detail)
        part.next = part.next or done.next
        done = joined(done, "sanitize", part)
        if part.status == "unavailable":
            done.status = "passed"
        return done

    def artifact(self, owner: str, kind: str, content: str) -> Artifact:
        """Keep what is too large to inline."""
        return self._engine.store.put_artifact(owner, kind, content)

    def _bench(
        self, program: Program, unit: Unit, spec: Any, shapes: Shapes, fresh: bool, control: Control, detail: Detail
    ) -> Result:
        wanted = shape_list(spec, shapes)
        known = None if fresh else self.stored(unit, spec, "bench", {"shapes": wanted})
        if known is None or {"invalid", "error"} & {s["verdict"] for s in known["shapes"]}:  # another run may be better
            known = self.run_gpu(program, unit, spec, "bench", wanted, control, modes=["warm", "cold"])
            device, verdict = device_name(known), "passed" if known["passed"] else "failed"
            model = predicted(unit.bound, spec, device, known["shapes"])
            kept = self.keep(unit, spec, "bench", {"shapes": wanted}, device, verdict, known, model)
            known = {**known, "measurement_id": kept, "model": model}
        result = Result(
            summary=f"{unit.kernel} on {device_name(known)}: {clean(str(known['summary']), 300)}",
            status="passed" if known["passed"] else "failed",
            ids={**program.ids, "variant_id": unit.variant_id, "measurement_id": known["measurement_id"]},
        )
        model = known["model"] or [{}] * len(known["shapes"])
        result.data = {
            "contract": spec.name,
            "device": plain(known["device"]),
            "rule": known["rule"],
            "reused": bool(known.get("reused")),
            "shapes": [{**bench_row(s), **model_row(m)} for s, m in zip(known["shapes"], model, strict=True)],
        }
        located = [Diagnostic.model_validate(d) for d in known.get("diagnostics", [])]
        add_diagnostics(result, located, program.text, detail)
        result.artifacts = [self._engine.store.put_artifact(unit.variant_id, "bench", json.dumps(known, indent=1))]
        result.next = _after_bench(program, spec, {str(s["verdict"]) for s in known["shapes"]})
        off = sum(map(outside, model))
        if off:
            result.summary += f"; {counted(off, 'time')} outside what the model predicted"
            result.next = f"{mispredicted_next(known['measurement_id'])}; {result.next}"
        return result

    # ---- the whole way ---------------------------------------------------------------------------------------------

    def compile_and_bench(
        self,
        ref: Ref,
        contract: str | None,
        shapes: Shapes | None,
        *,
        until: Until = "bench",
        fresh: bool = False,
        sanitize: Sequence[str] = (),
        control: Control | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Gates, compile, check, timing; stops at the first step that fails and says how far it came."""
        control = control or Control()
        program = self._engine.programs.load(ref)
        spec = self._engine.catalog.contract(contract) if contract else None
        if spec is None and until == "check":
            raise BadArgument("a check needs a contract", "see cake://contracts/index", code="args/contract-needed")
        tools = tools_of(sanitize)
        if tools and (spec is None or until == "compile"):
            raise BadArgument(
                "sanitize watches a launch on inputs of a contract",
                "name one, and until=check or bench",
                code="args/contract-needed",
            )
        if spec is not None and shapes:
            shape_list(spec, shapes)
        refused = self._engine.rejection(program, detail)
        if refused is not None:
            return refused
        gpu = bool(self._engine.catalog.gpu_indices())
        why = NO_GPU
        if gpu and spec is not None and until != "compile":
            try:
                program = self.for_device(program, control)
            except Missing as exc:
                gpu, why = False, exc.message
            refused = self._engine.rejection(program, detail)
            if refused is not None:
                return refused
        unit = self._engine.accepted_unit(program)
        done = self._build(program, unit, control, detail)
        if done.status != "passed" or spec is None or until == "compile":
            return self._labelled(unit, done, detail)
        named = isinstance(shapes, str)
        small = interpretable(spec, "boundary" if named or not shapes else shapes)
        # Timing judges the launches of its own shapes; a check that ends the work has to cover the set that was named.
        given = "boundary" if not shapes or (named and until == "bench") else shapes
        steps = [("check-cpu", lambda: self._check_cpu(program, unit, spec, small, fresh, control, detail))]
        if gpu:
            steps.append(("check-gpu", lambda: self._check_gpu(program, unit, spec, given, fresh, control, detail)))
            if until == "bench":
                timed = shapes or "tuning"
                steps.append(("bench", lambda: self._bench(program, unit, spec, timed, fresh, control, detail)))
        for name, step in steps:
            part = step()
            if name == "check-cpu" and small != "boundary" and part.data.get("too_large") and not _ran(part):
                # None of the listed shapes can be waited for: the boundary shapes stand in, and the answer says so.
                small = "boundary"
                part = step()
            done = joined(done, name, part)
            if name == "check-gpu":
                done = self._watched(done, program, unit, spec, shapes, tools, fresh, control, detail)
            if done.status != "passed":
                return self._labelled(unit, done, detail)
        if not gpu and tools:
            done.data["sanitize"] = {"status": "unavailable", "reason": why}
            done.summary += f"; no second opinion: {why}"
        if not gpu and shapes:
            left = unchecked(spec, shapes, small)
            if left:
                done.data["not_checked"] = left
                done.summary += f"; {left}"
        if until == "bench" and not gpu:
            done.data["bench"] = {"status": "unavailable", "reason": why}
            done.summary += f"; not timed: {why}"
            done.next = NO_GPU_NEXT
        return self._labelled(unit, done, detail)

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _key(self, spec: Any, kind: str, what: Mapping[str, Any]) -> str:
        """What evidence depends on besides the variant: contract, shapes, this version, and for the GPU also the
        compiler and the very device."""
        from lowering.compile import compiler_id

        parts = [__version__, spec.digest, kind, dict(what)]
        if kind != "check-cpu":
            parts += [compiler_id(), self.device(Control()).get("uuid", "")]
        return digest("k", *parts)

    def stored(self, unit: Unit, spec: Any, kind: str, what: Mapping[str, Any]) -> dict[str, Any] | None:
        key = self._key(spec, kind, what)
        for row in reversed(self._engine.store.measurements(unit.variant_id, spec.name, kind)):
            if row["record"].get("key") == key:
                known = {"measurement_id": row["measurement_id"], "model": row["record"].get("model", [])}
                return {**row["record"]["raw"], **known, "reused": True}
        return None

    def keep(
        self,
        unit: Unit,
        spec: Any,
        kind: str,
        what: Mapping[str, Any],
        device: str,
        verdict: str,
        raw: Mapping[str, Any],
        model: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Store evidence about a variant; answers its id. Durable when this returns. model: `server.predictions.predicted`."""
        record = {"key": self._key(spec, kind, what), "contract_digest": spec.digest, "raw": plain(raw)}
        if model:
            record["model"] = plain(model)
        record["undecided"] = self._engine.undecided(unit)
        return self._engine.store.put_measurement(
            unit.variant_id, spec.name, dict(plain(what)), device, kind, verdict, record
        )


def _after_bench(program: Program, spec: Any, verdicts: set[str]) -> str:
    """What to do after a timing with these verdicts."""
    if "incorrect" in verdicts:
        return (
            f"repair with propose_ir(base_id={program.ir_id!r}, edits=[...]); `message` of the shape names the element"
        )
    if "invalid" in verdicts:
        return "an invalid time must not be used: `message` of the shape says why; remove the cause and time it again"
    if "error" in verdicts:
        return "`message` of the shape has the driver's words; a fault of an accepted kernel is worth a report_failure"
    return f"profile(ir_id={program.ir_id!r}, contract={spec.name!r}) says what bounds it"


def _ran(part: Result) -> bool:
    """Whether any case of a check was run."""
    return bool(set(part.data["counts"]) - {"skipped"})
