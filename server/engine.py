"""The one facade behind the MCP tools and the command line.

Every public method answers with a `Result` and raises only `EngineError`. Methods are synchronous and thread safe; the
long ones take a `Control` (progress out, cancel in). The packages below are imported inside methods, so that a server
answers its first request before numpy or a compiler is loaded.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from cake_ir.diagnostics import CakeError, Diagnostic
from server.catalog import Catalog
from server.errors import BadArgument, EngineError, Missing
from server.evaluate import Evaluator
from server.failures import Symptom, failure_result, rule_on, shape_of
from server.fallback import or_unstored
from server.limits import computation_limit
from server.programs import Program, Programs, Ref, Unit, Value, apply_edits, text_of
from server.results import Artifact, Detail, Result, TextEdit, add_diagnostics, clean, fit, plain
from server.store import DEFAULT_LIMIT_BYTES, Store, digest, is_id
from server.wording import (
    binding_args,
    by_verdict,
    counted,
    ids_of,
    label,
    other_targets,
    repair_next,
    undecided,
    unit_facts,
)
from server.worker import Control

if TYPE_CHECKING:
    from analyses.cost.estimate import L2
    from server.ranking import Request

_log = structlog.get_logger("cake.engine")

VERIFY_S = 30.0
VERIFY_WAIT_S = 120.0


def default_workspace() -> Path:
    """`.cake` in the current directory: evidence lies beside the kernels it is about."""
    return Path.cwd() / ".cake"


@dataclass(frozen=True)
class Config:
    """Set by command-line flags only: MCP clients strip the environment of the servers they start."""

    workspace: Path = field(default_factory=default_workspace)
    no_gpu: bool = False
    read_only: bool = False
    contracts_dir: Path | None = None
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    @property
    def contracts_path(self) -> str | None:
        """The operator's contracts as an absolute path, as jobs of workers carry it."""
        return str(self.contracts_dir.resolve()) if self.contracts_dir else None


class Engine:
    """Programs in, results out."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.store = Store(
            self.config.workspace,
            read_only=self.config.read_only,
            limit_bytes=self.config.limit_bytes,
            or_memory=True,
        )
        self.twin: Engine | None = None
        self.programs = Programs(self.store)
        self.catalog = Catalog(self.store, self.config.contracts_dir, no_gpu=self.config.no_gpu)
        self.evaluate = Evaluator(self)
        self._verify_lock = threading.Lock()
        self._open: dict[str, list[str]] = {}

    def close(self) -> None:
        self.store.close()

    def cubin_dir(self) -> Path:
        """Where compiled kernels are cached; a scratch directory when the workspace may not be written."""
        if self.store.read_only:
            return Path(tempfile.gettempdir()) / f"cake-cubins-{os.getuid()}"
        return self.config.workspace / "cubins"

    # ---- propose ---------------------------------------------------------------------------------------------------

    def propose(
        self,
        *,
        text: str | None = None,
        json_ir: Mapping[str, Any] | None = None,
        base_id: str | None = None,
        edits: Sequence[TextEdit] = (),
        bindings: Mapping[str, Value] | None = None,
        target: str | None = None,
        kernel: str | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Store a program given as text, as its JSON form, or as edits of an earlier one; parse and type it."""
        given = [name for name, v in (("text", text), ("json", json_ir), ("base_id", base_id)) if v is not None]
        if len(given) != 1:
            raise BadArgument(
                f"give exactly one of text and base_id, got {' and '.join(given) or 'none'}",
                "text for a whole program, base_id (with edits, bindings or both) to continue an earlier one",
            )
        if edits and base_id is None:
            raise BadArgument("edits need base_id", "name the program that they change")
        ref = Ref(text=text, bindings=bindings or {}, target=target, kernel=kernel)
        if json_ir is not None:
            ref = Ref(text=text_of(json_ir), bindings=bindings or {}, target=target, kernel=kernel)
        if base_id is not None:
            base = self.programs.load(Ref(id=base_id, bindings=bindings or {}, target=target, kernel=kernel))
            ref = Ref(
                text=apply_edits(base.text, edits),
                bindings=base.ref.bindings,
                target=base.ref.target,
                kernel=base.ref.kernel,
            )
        self.store.require()
        program = self.programs.load(ref)
        units = self.programs.units(program)
        diagnostics = [*self._fixed(program, None, program.diagnostics, detail)]
        for unit in units:
            diagnostics += self._fixed(program, unit, unit.diagnostics, detail)
        errors = sum(d.severity == "error" for d in diagnostics)
        result = Result(summary="", status="rejected" if errors else "ok", ids=ids_of(program, units))
        add_diagnostics(result, diagnostics, program.text, detail)
        if errors:
            layer = "does not parse" if program.file is None else "is not well-typed"
            result.summary = (
                f"{program.name} {layer}: {counted(errors, 'error')}, first at line {result.diagnostics[0].line}"
            )
            result.next = repair_next(program)
        else:
            names = ", ".join(f"{u.kernel} for {u.target}" for u in units)
            result.summary = f"{program.name} is well-formed and typed ({names}); not verified yet"
            result.next = f"verify(ir_id={program.ir_id!r}{binding_args(program.ref)})"
        if detail == "detailed":
            result.data["kernels"] = [unit_facts(program, u) for u in units]
        return fit(result, detail)

    # ---- verify ----------------------------------------------------------------------------------------------------

    def verify(self, ref: Ref, detail: Detail = "concise", prove: bool = False) -> Result:
        """Run every gate on every kernel named; report findings, properties and the generated protocol tables.

        prove: spend the seconds that proofs for all shapes may take.
        """
        return or_unstored(self, lambda e: e._verify(ref, detail, prove))

    def _verify(self, ref: Ref, detail: Detail, prove: bool) -> Result:
        program = self.programs.load(ref)
        units = self.programs.units(program)
        diagnostics = [*self._fixed(program, None, program.diagnostics, detail)]
        properties: list[dict[str, Any]] = []
        artifacts: list[Artifact] = []
        skipped: list[str] = []
        for unit in units:
            if unit.bound is None:
                diagnostics += self._fixed(program, unit, unit.diagnostics, detail)
                skipped.append(f"{unit.kernel}: not analysed, because it is not well-typed")
                continue
            report = self.report(unit, prove)
            diagnostics += self._fixed(program, unit, (*unit.diagnostics, *report.diagnostics), detail)
            properties += [{"kernel": unit.kernel, **plain(p)} for p in report.properties]
            skipped += [f"{unit.kernel}: {clean(s, 200)}" for s in report.skipped]
            artifacts += self._keep_report(unit, report)
            failed = [d.rule for d in (*unit.diagnostics, *report.diagnostics) if d.severity == "error"]
            status = "rejected" if failed else "accepted"
            self.store.put_verdict(unit.variant_id, program.source_id, status, failed, self.undecided(unit))
        errors = [d for d in diagnostics if d.severity == "error"]
        result = Result(
            summary="", status="rejected" if errors else "accepted", ids=ids_of(program, units), artifacts=artifacts
        )
        add_diagnostics(result, diagnostics, program.text, detail)
        result.data["properties"] = by_verdict(properties) if detail == "concise" else properties
        skipped += other_targets(program, units)
        if skipped:
            result.data["not_checked"] = skipped
        if errors:
            first = result.diagnostics[0]
            result.summary = (
                f"{program.name} is rejected: {counted(len(errors), 'error')}, first at line {first.line}: {first.rule}"
            )
            result.next = repair_next(program)
        else:
            where = ", ".join(f"{u.kernel} ({u.target})" for u in units)
            warnings = sum(d.severity == "warning" for d in diagnostics)
            result.summary = f"{program.name} is accepted: {where}" + (
                f", {counted(warnings, 'warning')}" if warnings else ""
            )
            label(result, undecided(properties))
            result.next = f"estimate_cost(ir_id={program.ir_id!r}{binding_args(program.ref)}, shape={{...}})"
        return fit(result, detail)

    def report(self, unit: Unit, prove: bool = False) -> Any:
        """The verifier's report on one bound kernel."""
        assert unit.bound is not None
        verify = _need("analyses", "verify")
        try:
            with self.one_analysis(), computation_limit("verifying", VERIFY_S):
                from cake_ir.memo import memo

                # kept with the kernel: an estimate at another shape need not verify it again
                bound = unit.bound
                report = verify(bound, True) if prove else memo(bound, "server.report", lambda: verify(bound, False))
        except (EngineError, CakeError):
            raise
        except Exception as exc:
            raise self._verifier_crashed(unit, exc) from exc
        if len(self._open) > 256:
            self._open.clear()
        self._open[unit.variant_id] = undecided([{"kernel": unit.kernel, **plain(p)} for p in report.properties])
        return report

    def undecided(self, unit: Unit) -> list[str]:
        """What the verifier left undecided about one kernel; it may be compiled and run, and is labelled wherever it is."""
        if unit.variant_id not in self._open:
            self.report(unit)
        return self._open[unit.variant_id]

    @contextmanager
    def one_analysis(self) -> Iterator[None]:
        """One at a time: two cores, and pure Python work. Raises EngineError server/busy."""
        if not self._verify_lock.acquire(timeout=VERIFY_WAIT_S):
            raise EngineError(
                "server/busy",
                f"another verification has been running for over {VERIFY_WAIT_S:.0f} s",
                "try again later",
            )
        try:
            yield
        finally:
            self._verify_lock.release()

    def _fixed(
        self, program: Program, unit: Unit | None, diagnostics: Sequence[Diagnostic], detail: Detail
    ) -> Sequence[Diagnostic]:
        """The findings with repairs that were verified on copies; unchanged without errors or for an oversized text.

        Seconds at most, and one search at a time, like every analysis. A search that fails costs the fixes only.
        """
        if not program.source_id or not any(d.severity == "error" for d in diagnostics):
            return diagnostics
        with_fixes = _need("analyses.fixes", "with_fixes")
        of: dict[str, Any] = {"bindings": unit.bindings, "target": unit.target, "kernel": unit.kernel} if unit else {}
        if unit is not None and unit.bound is not None:
            of["bound"] = [unit.bound]
        try:
            with self.one_analysis(), computation_limit("repairing", VERIFY_S):
                return with_fixes(diagnostics, program.text, most=3 if detail == "detailed" else 1, **of)
        except EngineError:
            return diagnostics
        except Exception:
            _log.exception("the search for fixes failed", source=program.source_id)
            return diagnostics

    def _verifier_crashed(self, unit: Unit, exc: Exception) -> EngineError:
        """A fault of an analysis is evidence too: kept with the program that shows it, owner verifier."""
        _log.exception("verifier crashed", variant=unit.variant_id)
        failure_id = self.record_failure_of_ours(unit, f"{type(exc).__name__}: {exc}")
        return EngineError(
            "internal/verifier-crashed",
            f"an analysis failed on this program ({type(exc).__name__}); recorded as {failure_id}, owner verifier",
            "the program is kept as evidence; change it slightly and verify again",
        )

    def record_failure_of_ours(self, unit: Unit, observed: str) -> str:
        failure_id = digest("f", "verifier", "crash", "analysis", shape_of(observed))
        reason = "an analysis failed instead of answering"
        record = {
            "reason": reason,
            "variant_id": unit.variant_id,
            "code": "internal/verifier-crashed",
            "observed": clean(observed),
        }
        self.store.put_failure(failure_id, "verifier", "crash", record)
        return failure_id

    def _keep_report(self, unit: Unit, report: Any) -> list[Artifact]:
        out = []
        for kind in ("ledger", "memory", "registers", "coverage"):
            value = getattr(report, kind)
            if value:
                text = value if isinstance(value, str) else json.dumps(plain(value), indent=1, ensure_ascii=False)
                out.append(self.store.put_artifact(unit.variant_id, kind, text))
        return out

    def accepted_unit(self, program: Program) -> Unit:
        """The one kernel to compile or estimate. Raises BadArgument when it is not one accepted kernel."""
        units = self.programs.units(program)
        if len(units) > 1:
            raise BadArgument(
                f"the file has {len(units)} kernels: {', '.join(u.kernel for u in units)}",
                "name one: kernel= (on the command line --kernel)",
                code="args/kernel-needed",
            )
        if not units or units[0].bound is None:
            raise EngineError(
                "program/rejected",
                f"{program.name} is not well-typed",
                "call verify for the findings and repair them first",
            )
        return units[0]

    # ---- estimate --------------------------------------------------------------------------------------------------

    def estimate(
        self, ref: Ref, shape: Mapping[str, int], detail: Detail = "concise", device: str | None = None, l2: L2 = "cold"
    ) -> Result:
        """What the schedule should cost at one shape: measured rates where the device has a calibration. Never a measurement.

        device: its CUDA name (default: the product of the target); one that is neither measured nor in a data sheet is declined.
        l2: whether what fits L2 is there when the kernel starts. A detailed answer tries neighbouring schedules, which takes seconds.
        """
        from server.estimating import estimate

        return or_unstored(self, lambda e: estimate(e, ref, shape, detail, device, l2))

    def rank(
        self,
        request: Request,
        shape: Mapping[str, int],
        detail: Detail = "concise",
        device: str | None = None,
        l2: L2 = "cold",
        control: Control | None = None,
    ) -> Result:
        """Several candidates at one shape, ordered by what the model predicts, with its prior error in their family."""
        from server.ranking import rank

        return rank(self, request, shape, device, l2, control or Control(), detail)

    def rejection(self, program: Program, detail: Detail) -> Result | None:
        """The rejection of a program that has errors, for tools that need an accepted one; None when it has none."""
        units = self.programs.units(program)
        diagnostics = [*program.diagnostics, *(d for u in units for d in u.diagnostics)]
        if not any(d.severity == "error" for d in diagnostics):
            for unit in units:
                if unit.bound is not None:
                    diagnostics += self.report(unit).diagnostics
        if not any(d.severity == "error" for d in diagnostics):
            return None
        return self.refused(program, units, diagnostics, "is rejected, so nothing further was done", detail)

    def refused(
        self, program: Program, units: Sequence[Unit], diagnostics: Sequence[Diagnostic], why: str, detail: Detail
    ) -> Result:
        """A rejection with its findings. `why` completes the sentence that begins with the program's name."""
        result = Result(summary="", status="rejected", ids=ids_of(program, units))
        add_diagnostics(result, diagnostics, program.text, detail)
        errors = sum(d.severity == "error" for d in diagnostics)
        first = result.diagnostics[0]
        result.summary = f"{program.name} {why}: {counted(errors, 'error')}, first at line {first.line}: {first.rule}"
        result.next = repair_next(program)
        return fit(result, detail)

    # ---- failures --------------------------------------------------------------------------------------------------

    def report_failure(
        self,
        *,
        symptom: Symptom,
        ref: Ref | None = None,
        observed: str = "",
        expected: str = "",
        rule: str = "",
        measurement_id: str = "",
        shape: Mapping[str, int] | None = None,
        detail: Detail = "concise",
    ) -> Result:
        """Record a failure, name its owner, and count it up when its signature is known.

        measurement_id, shape (of the contract): for mispredicted_time, which time; default: the latest of the variant.
        """
        self.store.require()
        if symptom == "mispredicted_time":
            from server.misprediction import report

            notes = {"observed": observed, "expected": expected}
            known = report(self, ref, measurement_id, dict(shape or {}), notes, detail)
            if known is not None:
                return known
        elif measurement_id or shape:
            raise BadArgument(
                "measurement_id and shape name a mispredicted time", "they belong to symptom mispredicted_time"
            )
        program: Program | None = None
        verdict: str | None = None
        rules: list[str] = []
        cpu_check: str | None = None
        unit: Unit | None = None
        if ref is not None:
            program = self.programs.load(ref)
            units = self.programs.units(program)
            unit = units[0] if units else None
            refused = self.rejection(program, "detailed")
            verdict = "rejected" if refused else "accepted"
            rules = sorted({d.rule for d in refused.diagnostics if d.severity == "error"}) if refused else []
            if unit is not None:
                checks = self.store.measurements(unit.variant_id, kind="check-cpu")
                cpu_check = checks[-1]["verdict"] if checks else None
        if rule:
            self.catalog.require_rule(rule)
        ruling = rule_on(symptom, verdict, rules or ([rule] if rule else []), cpu_check)
        failure_id = digest("f", ruling.owner, symptom, rules or rule, self._family(program), shape_of(clean(observed)))
        record = {
            "reason": ruling.reason,
            "verdict": verdict,
            "rules": rules,
            "ir_id": program.ir_id if program else "",
            "source_id": program.source_id if program else "",
            "variant_id": unit.variant_id if unit else "",
            "observed": clean(observed),
            "expected": clean(expected),
            "named_rule": rule,
        }
        count = self.store.put_failure(failure_id, ruling.owner, symptom, record)
        return fit(failure_result(failure_id, ruling, symptom, count, record), detail)

    def _family(self, program: Program | None) -> list[str]:
        """Kernel names: the same fault in two different kernels is two records."""
        return sorted(k.name for k in program.file.kernels) if program and program.file else []

    def record_worker_failure(
        self, symptom: Symptom, unit: Unit, code: str, log: str, standing: Mapping[str, Any] | None = None
    ) -> str:
        """Store a worker that hung or died on an accepted program as evidence against the verifier.

        standing: where the roles stood and whether the device answers (`server.diagnosis.Standing`).
        """
        ruling = rule_on(symptom, "accepted", (), None)
        failure_id = digest("f", ruling.owner, symptom, code, [unit.kernel], shape_of(log[-300:]))
        self.store.put_failure(
            failure_id,
            ruling.owner,
            symptom,
            {
                "reason": ruling.reason,
                "variant_id": unit.variant_id,
                "code": code,
                "observed": clean(log),
                "standing": dict(standing or {}),
            },
        )
        return failure_id

    def calibration_records(self) -> Result:
        """Predictions that were wrong beyond their interval, as reported."""
        from server.misprediction import records

        return records(self)

    # ---- artifacts -------------------------------------------------------------------------------------------------

    def artifact(self, owner: str, kind: str) -> bytes | None:
        """The bytes of an artifact, also of one that could not be stored; None when it is not here."""
        raw = self.store.artifact(owner, kind)
        return self.twin.store.artifact(owner, kind) if raw is None and self.twin is not None else raw

    def artifact_text(self, uri: str) -> str:
        """The text behind any cake:// URI. Raises UnknownId or BadArgument."""
        if uri.startswith("cake://artifact/"):
            parts = uri.removeprefix("cake://artifact/").split("/")
            if len(parts) == 2 and is_id(parts[0]):
                raw = self.artifact(parts[0], parts[1])
                if raw is not None:
                    try:
                        return raw.decode()
                    except UnicodeDecodeError:
                        raise BadArgument(
                            f"{uri} is {len(raw)} bytes of binary", "read the sass or ptx artifact instead"
                        ) from None
            raise BadArgument(
                f"no artifact {clean(uri, 160)!r} in this workspace",
                "use a uri from `artifacts` of an earlier result",
                code="args/unknown-uri",
            )
        return self.catalog.page(uri)

    def read_artifact(self, uri: str, offset: int = 0, limit: int = 200, grep: str = "") -> Result:
        """A window of lines of an artifact or a documentation page. `grep` is a plain substring, not a pattern."""
        text = self.artifact_text(uri)
        lines = text.split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        numbered = [(i, line) for i, line in enumerate(lines, 1) if grep in line] if grep else list(enumerate(lines, 1))
        shown, used = [], 0
        for number, line in numbered[offset : offset + limit]:
            cut = clean(line, 400)
            used += len(json.dumps(cut)) + 12
            if used > 16_000:
                break
            shown.append(f"{number}: {cut}")
        end = offset + len(shown)
        more = end < len(numbered)
        what = f"lines with {clean(grep, 60)!r}" if grep else "lines"
        result = Result(
            summary=f"{len(shown)} of {len(numbered)} {what} of {clean(uri, 160)}",
            status="ok",
            data={"lines": shown, "offset": offset, "matching": len(numbered), "total_lines": len(lines)},
        )
        if more:
            result.data["next_offset"] = end
            result.next = f"read_artifact(uri={uri!r}, offset={end}{f', grep={grep!r}' if grep else ''}) for more"
        return fit(result, "detailed")


def _need(module: str, name: str) -> Any:
    """An attribute of a package below; a coded answer when the installation lacks it."""
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise Missing(
            "server/component-missing", f"{module}.{name} is not installed here: {exc}", "see `cake doctor`"
        ) from exc
