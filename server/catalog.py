"""What there is to know without a program: rules, ops, targets, contracts, corpus kernels, results, this machine.

Serves the resources (`cake://rules/...` and so on), `read_artifact` for the same URIs, and the listing commands.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, Diagnostic
from server.errors import BadArgument
from server.results import Result, clean, plain
from server.store import Store


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class Catalog:
    """Read-only views over the registries of the packages below."""

    def __init__(self, store: Store | None, contracts_dir: Path | None, *, no_gpu: bool) -> None:
        self._store = store
        self._contracts_dir = contracts_dir
        self._no_gpu = no_gpu
        self._contracts: Mapping[str, Any] | None = None
        self._bad_contracts: list[Diagnostic] = []
        self._contracts_lock = threading.Lock()

    # ---- registries ------------------------------------------------------------------------------------------------

    def rule_registry(self) -> Mapping[str, Any]:
        import importlib

        return importlib.import_module("analyses.rules").registry()

    def op_registry(self) -> Mapping[str, Any]:
        from cake_ir import ops

        return ops.registry()

    def contract_registry(self) -> Mapping[str, Any]:
        """Built-in contracts and the operator's own; read once, since a contract is not the agent's to change."""
        with self._contracts_lock:
            if self._contracts is None:
                from corpus.contract import contracts

                bad: list[Diagnostic] = []
                try:
                    self._contracts = contracts(self._contracts_dir, bad)
                except CakeError as exc:
                    found = exc.diagnostic
                    raise BadArgument(found.message, found.contract, code=found.rule) from exc
                self._bad_contracts = bad
            return self._contracts

    def bad_contracts(self) -> list[str]:
        """Operator files that do not load, each with place and cause."""
        self.contract_registry()
        return [clean(d.message, 600) for d in self._bad_contracts]

    def contract(self, name: str) -> Any:
        known = self.contract_registry()
        if name not in known:
            bad = self.bad_contracts()
            raise BadArgument(
                f"no contract named {clean(name, 64)!r}{_nearest(name, known)}"
                + (f"; a file did not load: {'; '.join(bad)}" if bad else ""),
                f"contracts: {', '.join(sorted(known))}",
                code="contract/bad-file" if bad else "args/unknown-contract",
            )
        return known[name]

    def require_rule(self, name: str) -> Any:
        known = self.rule_registry()
        if name not in known:
            raise BadArgument(
                f"no rule named {clean(name, 64)!r}{_nearest(name, known)}",
                "see `cake rules` or cake://rules/index",
                code="args/unknown-rule",
            )
        return known[name]

    # ---- listings --------------------------------------------------------------------------------------------------

    def rules(self) -> Result:
        known = self.rule_registry()
        rows = [
            {"rule": name, "severity": p.rule.severity, "layer": p.rule.layer, "title": clean(p.rule.title, 200)}
            for name, p in sorted(known.items())
        ]
        return Result(
            summary=f"{len(rows)} rules", status="ok", data={"rules": rows}, next="explain RULE shows a rule's page"
        )

    def explain(self, name: str) -> Result:
        """The page of a rule, an op or a target, whichever bears the name."""
        if "/" in name:
            return Result(summary=f"rule {name}", status="ok", data={"page": self.require_rule(name).markdown})
        if name in self.op_registry():
            return Result(summary=f"op {name}", status="ok", data={"page": self.op_page(name)})
        hits = [r for r in self.rule_registry() if r.split("/")[-1] == name]
        if len(hits) == 1:
            return self.explain(hits[0])
        self.require_rule(name)
        raise AssertionError("unreachable: require_rule raises")

    def ops(self, name: str | None = None) -> Result:
        known = self.op_registry()
        if name is not None:
            return Result(summary=f"op {clean(name, 64)}", status="ok", data={"page": self.op_page(name)})
        rows = [
            {"op": n, "units": o.units, "form": o.form, "doc": _first_line(o.doc)} for n, o in sorted(known.items())
        ]
        return Result(summary=f"{len(rows)} ops", status="ok", data={"ops": rows})

    def targets(self, name: str | None = None) -> Result:
        from cake_ir import targets

        if name is not None:
            target = self._target(name)
            facts = {
                k: {"value": plain(f.value), "unit": f.unit, "source": f.source, "checked": f.checked}
                for k, f in sorted(target.facts.items())
            }
            data = {
                "target": target.name,
                "product": target.product,
                "features": sorted(target.features),
                "facts": facts,
            }
            return Result(
                summary=f"target {target.name}: {target.architecture}, {len(facts)} facts", status="ok", data=data
            )
        rows = [
            {"target": t.name, "architecture": t.architecture, "product": t.product, "features": sorted(t.features)}
            for t in map(targets.get, targets.names())
        ]
        return Result(summary=f"{len(rows)} targets", status="ok", data={"targets": rows})

    def corpus(self) -> Result:
        from corpus.kernels import kernels

        rows = [k.to_json() for k in kernels()]
        return Result(summary=f"{len(rows)} corpus kernels", status="ok", data={"kernels": rows})

    def results(self, directory: Path | None = None, marks: Mapping[Any, str] | None = None) -> Result:
        """Committed rows, losses first. marks: what a rebuild found stale, instead of what is recorded (corpus.rebuild)."""
        from corpus import evidence, rebuild

        # Raw samples stay in the files: a listing is for reading.
        where = directory or evidence.DIRECTORY
        found = evidence.results(where, known=marks)
        found.sort(key=lambda r: (r.ratio is None, r.ratio or 0.0, r.kernel, r.mode))
        rows = [r.model_dump(mode="json", exclude={"samples_us", "baseline_samples_us"}) for r in found]
        stale = sum(r.stale is not None for r in found)
        summary = f"{len(rows)} committed measurements" + (f", {stale} stale" if stale else "")
        others = rebuild.stale_files(where, rebuild.marks(where) if marks is None else marks)
        if others:
            summary += "; stale records in " + ", ".join(f"{name} ({n})" for name, n in others.items())
        return Result(summary=summary, status="ok", data={"results": rows})

    def contracts(self) -> Result:
        rows = [
            {"contract": n, "summary": clean(c.summary, 200), "origin": c.origin}
            for n, c in sorted(self.contract_registry().items())
        ]
        bad = self.bad_contracts()
        summary = f"{len(rows)} contracts" + (f"; did not load: {'; '.join(bad)}" if bad else "")
        return Result(summary=summary, status="failed" if bad else "ok", data={"contracts": rows})

    # ---- this machine ----------------------------------------------------------------------------------------------

    def gpu_indices(self) -> list[int]:
        from server.worker import gpus

        return [] if self._no_gpu else gpus()

    def doctor(self) -> Result:
        """What works here and what does not, with the remedy."""
        checks: list[dict[str, Any]] = []

        def add(name: str, ok: bool, found: str, remedy: str = "") -> None:
            checks.append(
                {"check": name, "ok": ok, "found": clean(found, 200)} | ({"remedy": remedy} if not ok else {})
            )

        add("python", sys.version_info >= (3, 11), platform.python_version(), "use Python 3.11 or newer")
        for dist in ("mcp", "pydantic", "numpy", "ml_dtypes", "jinja2", "matplotlib"):
            add(dist, *_version(dist), "pip install cake-mcp")  # type: ignore[misc]
        add("nvrtc", *self._compiler(), "pip install 'cake-mcp[cuda]'")  # type: ignore[misc]
        indices = self.gpu_indices()
        why = "switched off by --no-gpu" if self._no_gpu else "no /dev/nvidia* device"
        add(
            "gpu",
            bool(indices),
            f"GPU {', '.join(map(str, indices))}" if indices else why,
            "not needed for verify, estimate, build and check by interpretation; needed for timing and profiling",
        )
        for index in indices:
            from server.diagnosis import look_at

            remedy = "see nvidia-smi and dmesg; a GPU that faulted may need `nvidia-smi --gpu-reset` by its owner"
            add(f"gpu {index}", *look_at(index), remedy)
        if self._store is not None:
            add("workspace", *_workspace(self._store))
        needed = [c for c in checks if not c["ok"] and not c["check"].startswith("gpu")]
        summary = "everything needed works" if not needed else f"{len(needed)} of {len(checks)} checks failed"
        if not indices:
            summary += f"; no GPU ({why}): timing and profiling are unavailable, everything else works"
        return Result(summary=summary, status="failed" if needed else "ok", data={"checks": checks})

    def _compiler(self) -> tuple[bool, str]:
        if importlib.util.find_spec("cuda") is None:
            return False, "cuda-python is not installed"
        from lowering.compile import compiler_versions

        try:
            found = compiler_versions()
        except CakeError as exc:
            return False, exc.diagnostic.message
        return True, f"NVRTC {found['nvrtc']}, bindings {found['bindings']}"

    # ---- pages -----------------------------------------------------------------------------------------------------

    def _target(self, name: str) -> Any:
        from cake_ir import targets

        if name not in targets.names():
            raise BadArgument(
                f"no target named {clean(name, 64)!r}",
                f"targets: {', '.join(targets.names())}",
                code="args/unknown-target",
            )
        return targets.get(name)

    def op_page(self, name: str) -> str:
        """One op: form, source, who executes it, operands, effects."""
        known = self.op_registry()
        if name not in known:
            raise BadArgument(
                f"no op named {clean(name, 64)!r}{_nearest(name, known)}",
                "see `cake ops` or cake://ops/index",
                code="args/unknown-op",
            )
        op = known[name]
        units = {"T": "thread", "W": "warp", "G": "warpgroup", "K": "kernel level"}
        params = [
            f"- `{p.name}`: {p.kind}{'' if p.required else f', optional, default {p.default!r}'}"
            + (f", one of {', '.join(p.choices)}" if p.choices else "")
            for p in op.params
        ]
        effects = [
            f"- {a.mode}s `{a.operand}` through the {a.proxy} proxy{', completes later' if a.deferred else ''}"
            for a in op.accesses
        ]
        effects += [f"- {s.kind} {s.operand or s.group}".rstrip() for s in op.syncs]
        parts: list[str] = [
            f"# {op.name}",
            str(op.doc),
            f"Hardware form: `{op.form}` ({op.source})",
            f"Executed by: {', '.join(units.get(str(u), str(u)) for u in op.units)}. Completion: {op.completion}."
            + (f" Needs: {op.feature}." if op.feature else ""),
        ]
        parts += ["## Operands\n" + "\n".join(params)] if params else []
        parts += ["## Effects\n" + "\n".join(effects)] if effects else []
        parts += ["## Examples\n" + "\n".join(f"    {e}" for e in op.examples)] if op.examples else []
        return "\n\n".join(parts) + "\n"

    def page(self, uri: str) -> str:
        """The text of a documentation URI. Raises BadArgument args/unknown-uri."""
        match uri.removeprefix("cake://").split("/") if uri.startswith("cake://") else []:
            case ["rules", "index"]:
                return _table(self.rules().data["rules"], "cake://rules/", "rule")
            case ["rules", family, name]:
                return self.require_rule(f"{family}/{name}").markdown
            case ["ops", "index"]:
                return _table(self.ops().data["ops"], "cake://ops/", "op")
            case ["ops", name]:
                return self.op_page(name)
            case ["targets", "index"]:
                return _table(self.targets().data["targets"], "cake://targets/", "target")
            case ["targets", name]:
                return self._target_page(name)
            case ["contracts", "index"]:
                return _table(self.contracts().data["contracts"], "cake://contracts/", "contract")
            case ["contracts", name]:
                return self._contract_page(name)
            case ["corpus", "index"]:
                return _table(self.corpus().data["kernels"], "cake://corpus/", "name")
            case ["corpus", name]:
                return self.corpus_text(name)
        raise BadArgument(
            f"no resource {clean(uri, 160)!r}",
            "see cake://rules/index, cake://ops/index, cake://corpus/index",
            code="args/unknown-uri",
        )

    def _target_page(self, name: str) -> str:
        data = self.targets(name).data
        rows = [
            f"| {k} | {f['value']} | {f['unit']} | {f['checked']} | {f['source']} |" for k, f in data["facts"].items()
        ]
        head = f"# {data['target']}\n\n{data['product']}\n\nFeatures: {', '.join(data['features'])}\n\n"
        head += "| fact | value | unit | checked | source |\n|---|---|---|---|---|\n"
        return head + "\n".join(rows) + "\n"

    def _contract_page(self, name: str) -> str:
        told = self.contract(name).describe()
        rows = [
            f"| {t['name']} | {t['direction']} | {t['dtype']} | {' x '.join(map(str, t['extents']))} | {t['meaning']} |"
            for t in told["tensors"]
        ]
        scalars = [f"- `{s['name']}`: {s['dtype']} = {s['value']} {s['meaning']}" for s in told["scalars"]]
        shapes = [
            f"- {n}: " + "; ".join(" ".join(f"{k}={v}" for k, v in s.items()) for s in sets)
            for n, sets in told["shapes"].items()
        ]
        parts = [
            f"# Contract {name}",
            told["summary"],
            f"Digest `{told['digest']}`, {told['origin']}.",
            "| tensor | direction | dtype | extents | meaning |\n|---|---|---|---|---|\n" + "\n".join(rows),
            "## Dimensions\n" + "\n".join(f"- `{k}`: {v}" for k, v in told["dims"].items()),
            "## Precision\n" + told["precision"],
            "## Shapes\n" + "\n".join(shapes),
            f"Distributions: {', '.join(told['distributions'])}. Baselines: {', '.join(told['baselines']) or 'none'}.",
        ]
        parts += ["## Scalars\n" + "\n".join(scalars)] if scalars else []
        parts += [f"Element types: {told['dtypes']}"] if told["dtypes"] else []
        return "\n\n".join(parts) + "\n"

    def corpus_kernel(self, name: str) -> Any:
        """A corpus entry. Raises BadArgument args/unknown-kernel."""
        from corpus.kernels import kernels

        known = {k.name: k for k in kernels()}
        if name not in known:
            raise BadArgument(
                f"no corpus kernel named {clean(name, 64)!r}{_nearest(name, known)}",
                "see `cake corpus`",
                code="args/unknown-kernel",
            )
        return known[name]

    def corpus_text(self, name: str) -> str:
        return self.corpus_kernel(name).text()


def _workspace(store: Store) -> tuple[bool, str, str]:
    """Whether evidence can be kept, what the workspace holds, and the remedy."""
    if store.problem is not None:
        return False, f"{store.root}: {store.problem.message}", store.problem.next
    if not os.path.exists(store.root):
        parent = next(p for p in store.root.absolute().parents if os.path.exists(p))
        able = os.path.isdir(parent) and os.access(parent, os.W_OK)
        return able, f"{store.root}: not made yet", f"{parent} is not writable: name another with --workspace"
    held = ", ".join(f"{n} {t}" for t, n in store.counts().items() if n) or "empty"
    return True, f"{store.root}: {held}", ""


def _version(dist: str) -> tuple[bool, str]:
    try:
        return True, importlib.metadata.version(dist)
    except importlib.metadata.PackageNotFoundError:
        return False, "not installed"


def _first_line(text: str) -> str:
    for line in text.split("\n"):
        stripped = line.strip().lstrip("# ")
        if stripped:
            return clean(stripped, 160)
    return ""


def _table(rows: list[dict[str, Any]], base: str, key: str) -> str:
    """One line per entry: URI, then the remaining short fields."""
    lines = []
    for row in rows:
        rest = "; ".join(str(v) for k, v in row.items() if k != key and isinstance(v, str))
        lines.append(f"{base}{row[key]}  {clean(rest, 200)}")
    return "\n".join(lines) + "\n"
