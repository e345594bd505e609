"""The CPU worker: compile a kernel, check it by interpretation, or ask where it blocks, in a process that can be killed.

One job on stdin, JSON lines on stdout (see server.worker). The program arrives as text with its bindings and is parsed
and bound again here: nothing but data crosses between processes.
"""

from __future__ import annotations

import base64
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError


def emit_line(obj: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(obj) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def bind_job(job: dict[str, Any]) -> Any:
    """The bound kernel a job names. Raises CakeError with the first diagnostic when it does not bind."""
    from cake_ir import bind, parse

    parsed = parse(job["text"])
    if parsed.file is None:
        raise CakeError(parsed.diagnostics[0])
    done = bind(parsed.file, job["bindings"], job["target"], job["kernel"])
    if done.bound is None:
        raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
    return done.bound


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Emit CUDA C++ and compile it. Answers texts, the cubin in base64, resources and the SASS check."""
    from lowering import build as compile_kernel
    from lowering import emit

    emitted = emit(bind_job(job))
    if job.get("emit_only"):
        return {"cuda": emitted.cuda}
    done = compile_kernel(emitted, cache_dir=job["cache_dir"], timeout_s=job["timeout_s"])
    return {
        "cuda": emitted.cuda,
        "cubin": base64.b64encode(done.cubin).decode(),
        "ptx": done.ptx,
        "sass": done.sass.text,
        "log": done.log,
        "report": done.report(),
        "promised": len(emitted.promised),
        "diagnostics": [d.model_dump(mode="json") for d in done.diagnostics],
    }


def contracts_of(job: dict[str, Any]) -> Any:
    """All contracts, the operator's own included."""
    from corpus.contract import contracts

    extra = Path(job["contracts_dir"]) if job.get("contracts_dir") else None
    return contracts(extra, [])


def contract_of(job: dict[str, Any]) -> Any:
    """The contract that a job names."""
    return contracts_of(job)[job["contract"]]


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Interpret the kernel against its contract; see corpus.check.check_cpu."""
    from analyses import interpret
    from corpus.check import check_cpu

    bound = bind_job(job)
    done = check_cpu(
        bound,
        contract_of(job),
        job["shapes"],
        interpret=interpret,
        budget_s=job.get("budget_s"),
        progress=lambda at, total, what: emit_line({"progress": at, "total": total, "message": what}),
    )
    return done.model_dump(mode="json")


def prepare(job: dict[str, Any]) -> dict[str, Any]:
    """Compile and make the GPU worker's job: concrete launch plans and the cubin."""
    from corpus.prepare import prepare as make

    ready, skipped = make(
        job["text"],
        job["contract"],
        job["job"],
        job["shapes"],
        target=job["target"],
        bindings=job["bindings"],
        kernel=job["kernel"],
        sms=job["sms"],
        contracts_dir=job["contracts_dir"],
        **job["more"],
    )
    return {"job": ready.model_dump(mode="json"), "skipped": [[dict(shape), why] for shape, why in skipped]}


def stand(job: dict[str, Any]) -> dict[str, Any]:
    """What the order reading says of a launch that hung; see analyses.order.stand."""
    from analyses.order.stand import stand as ask
    from cake_ir.derive import derive
    from corpus.signature import solve_dims

    bound = bind_job(job)
    dims = solve_dims(bound, contract_of(job), job["shape"])
    return ask(bound, derive(bound), dims, job["sms"]).to_json()


def blame(job: dict[str, Any]) -> dict[str, Any]:
    """Failed cases of a GPU's answer with the op that wrote each wrong element; see corpus.blame."""
    from corpus.blame import blame_job
    from corpus.check import CaseResult

    contract = contract_of(job)
    cases = [CaseResult.model_validate(c) for c in job["cases"]]
    done = blame_job(bind_job(job), contract, cases, job["seed"], job["secret"], job["sms"])
    return {"cases": [c.model_dump(mode="json") for c in done]}


def explain(job: dict[str, Any]) -> dict[str, Any]:
    """What a profile says (corpus.profiling), its samples joined with the machine code of the same cubin.

    Answers {"summary": Summary JSON, "listing": text}; when the code here is not the code that was profiled, samples stay
    without lines and the summary's notes say so.
    """
    import hashlib

    from corpus.profiling import facts, sass_listing, summarise
    from lowering import build as compile_kernel
    from lowering import emit

    bound = bind_job(job)
    profile = job["profile"]
    known = facts(bound, job["text"], contract_of(job), profile["shape"]["shape"])
    emitted = emit(bound)
    done = compile_kernel(
        emitted, cache_dir=job["cache_dir"], timeout_s=job["timeout_s"]
    )  # `prepare` has just built it
    same = hashlib.sha256(done.cubin).hexdigest() == job["cubin_sha256"]
    rows = profile["counters"].get("instructions", []) if same else []
    found = summarise(profile, done.sass if same else None, known).to_json()
    if not same:
        found["notes"] = [
            *found["notes"],
            "the machine code built here is not the profiled one: samples stay without lines",
        ]
    return {"summary": found, "listing": sass_listing(done.sass, job["text"], rows, emitted.symbol)}


def assess(job: dict[str, Any]) -> dict[str, Any]:
    """Candidates through the static gates and the model; see server.assess."""
    from server.assess import assess as each_of

    total = len(job["items"])
    return {
        "outcomes": each_of(
            job, contracts_of(job), lambda done: emit_line({"progress": done, "total": total, "message": "estimating"})
        )
    }


JOBS = {
    "assess": assess, "explain": explain, "build": build, "check": check, "prepare": prepare, "stand": stand, "blame": blame,
}  # fmt: skip


def main() -> None:
    job = json.loads(sys.stdin.readline())
    sys.stdout = sys.stderr  # a stray print must not look like protocol
    try:
        emit_line({"result": JOBS[job["kind"]](job)})
    except CakeError as exc:
        emit_line({"result": {"diagnostic": exc.diagnostic.model_dump(mode="json")}})
    except MemoryError:
        emit_line(
            {
                "error": {
                    "code": "worker/memory",
                    "message": "the worker ran out of memory",
                    "next": "use a smaller shape",
                }
            }
        )
    except (ImportError, FileNotFoundError) as exc:
        emit_line({"error": {"code": "server/component-missing", "message": str(exc), "next": "see `cake doctor`"}})
    except Exception:
        traceback.print_exc()
        emit_line(
            {
                "error": {
                    "code": "internal/unexpected",
                    "message": "the worker failed unexpectedly; see the server log",
                    "next": "stored evidence is intact; report it with report_failure (symptom crash)",
                }
            }
        )


if __name__ == "__main__":
    main()
