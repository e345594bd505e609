"""The run: plan, sample, worker processes, a log that a later run (also on another machine) continues, report.

    python -m tests.mutation.run [--jobs N] [--limit N] [--seed S] [--kernel PART] [--kind K] [--shard I/N]
                                 [--log FILE] [--write FILE] [--no-fixes] [--report] [--any-code] [--list OUTCOME]
                                 [--show ID]

The log has one JSON object a line, stamped with a hash of the code that wrote it and with the machine. Mutants that this very
code has logged are not run again; lines of other code count for nothing unless `--any-code` says so. Logs of several machines
are joined by `cat`. Exit 0: no false accept, no unexplained reject, no crash. 1: some. 2: bad arguments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.mutation.evaluate import OUTCOMES, evaluate, mutation, to_json
from tests.mutation.mutants import Entry, entries, text_of
from tests.mutation.operators import KINDS
from tests.mutation.report import groups, summary, table
from tests.mutation.subjects import subjects

ROOT = Path(__file__).parents[2]
LOG = ROOT / "build" / "mutation.jsonl"


def _entries(name: str) -> list[Entry]:
    return entries(next(s for s in subjects() if s.name == name))


def full_plan(jobs: int = 1, only: str = "") -> list[Entry]:
    """All mutants of all subjects whose name contains `only`; a program that two subjects give counts for the first."""
    chosen = [s.name for s in subjects() if only in s.name]
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            parts = list(pool.map(_entries, chosen))
    else:
        parts = [_entries(n) for n in chosen]
    seen: set[str] = set()
    found = []
    for e in (e for part in parts for e in part):
        if e.id not in seen:
            seen.add(e.id)
            found.append(e)
    return found


def sample(plan: Sequence[Entry], limit: int, seed: int) -> list[Entry]:
    """At most `limit` mutants, drawn by seed: half of them synchronisation edits where there are enough, and in each half
    the kinds in turn until they run out, so that rare kinds are not lost."""
    if limit <= 0 or limit >= len(plan):
        return list(plan)
    sync = _in_turn([e for e in plan if e.sync], seed)
    rest = _in_turn([e for e in plan if not e.sync], seed)
    half = (limit + 1) // 2
    take = min(len(sync), max(half, limit - len(rest)))
    return sync[:take] + rest[: limit - take]


def _in_turn(plan: Sequence[Entry], seed: int) -> list[Entry]:
    pools: dict[str, list[Entry]] = {}
    for e in sorted(plan, key=lambda e: e.id):
        pools.setdefault(e.kind, []).append(e)
    chance = random.Random(seed)
    for k in sorted(pools):
        chance.shuffle(pools[k])
    found: list[Entry] = []
    while any(pools.values()):
        for k in sorted(pools):
            if pools[k]:
                found.append(pools[k].pop())
    return found


def shard(plan: Sequence[Entry], part: str) -> list[Entry]:
    """Part I of N (from 1) of the plan, by id, so that all machines agree. Raises ValueError."""
    if not part:
        return list(plan)
    i, n = (int(x) for x in part.split("/"))
    if not 1 <= i <= n:
        raise ValueError("--shard I/N needs 1 <= I <= N")
    return [e for e in plan if int(e.id.removeprefix("ir_")[:8], 16) % n == i - 1]


CODE = ("cake_ir", "analyses", "corpus/kernels", "corpus/contracts", "tests/mutation", "tests/data", "tests/reference")
"""What a record depends on: language, verifier and judge, subjects and their references."""


@lru_cache(maxsize=1)
def code_hash() -> str:
    """12 hexadecimal digits over the sources in `CODE`, the same on every machine."""
    total = hashlib.sha256()
    for folder in CODE:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".cake", ".json") and file.is_file():
                total.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]


def machine() -> str:
    """The machine in words, for the log."""
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def read_log(path: Path, code: str = "") -> dict[str, dict[str, Any]]:
    """The records of a log by id, with `code` only those that it wrote; a torn last line (a killed run) is left out."""
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                r = json.loads(line)
            except ValueError:
                continue
            if not code or r.get("code") == code:
                found[r["id"]] = r
    return found


def _work(batch: list[tuple[str, int, str]], fixes: bool) -> list[dict[str, Any]]:
    stamp = {"code": code_hash(), "machine": machine()}
    return [to_json(evaluate(name, index, mutant, fixes=fixes)) | stamp for name, index, mutant in batch]


def _quiet_worker() -> None:
    # one numerical thread per process: the processes are the parallelism
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from tests.mutation.subjects import subjects as all_subjects

    for s in all_subjects():
        for launch in s.launches:
            launch.problem()


def execute(todo: Sequence[Entry], jobs: int, fixes: bool) -> Iterator[dict[str, Any]]:
    """Records of the mutants, as they come. Batches hold mutants of one subject, since a worker enumerates a subject once."""
    order = sorted(todo, key=lambda e: (e.subject, e.index))
    size = max(1, min(24, len(order) // (4 * jobs) or 1))
    batches: list[list[tuple[str, int, str]]] = []
    for e in order:
        if batches and len(batches[-1]) < size and batches[-1][0][0] == e.subject:
            batches[-1].append((e.subject, e.index, e.id))
        else:
            batches.append([(e.subject, e.index, e.id)])
    random.Random(len(batches)).shuffle(batches)  # a run that is stopped has seen something of every subject
    if jobs <= 1:
        for b in batches:
            yield from _work(b, fixes)
        return
    with ProcessPoolExecutor(jobs, initializer=_quiet_worker) as pool:
        waiting = [pool.submit(_work, b, fixes) for b in batches]
        try:
            for done in as_completed(waiting):
                yield from done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def with_progress(records: Iterable[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    """The records, with a bar on a terminal and a line every half minute elsewhere."""
    counts = dict.fromkeys(OUTCOMES, 0)
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            pass
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=Console(stderr=True)) as bar:
                task = bar.add_task("mutants", total=total)
                for r in records:
                    counts[r["outcome"]] += 1
                    bad = counts["false accept"], counts["unexplained reject"]
                    bar.update(
                        task, advance=1, description=f"mutants (false accepts {bad[0]}, unexplained rejects {bad[1]})"
                    )
                    yield r
            return
    said = time.monotonic()
    for n, r in enumerate(records, 1):
        counts[r["outcome"]] += 1
        if time.monotonic() - said > 30 or n == total:
            said = time.monotonic()
            shown = ", ".join(f"{c} {o}" for o, c in counts.items() if c)
            print(f"{n} of {total}: {shown}", file=sys.stderr, flush=True)
        yield r


def commit() -> str:
    """The commit of the checkout, with `+` when it has changes, or `unknown`."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("CAKE_COMMIT", "unknown")
    return head + ("+" if dirty else "")


def write(path: Path, records: Sequence[dict[str, Any]], seed: int, trials: Sequence[dict[str, Any]]) -> None:
    """`corpus/results/mutation.json`: totals, what is wrong or explained in full, and the judge's own test."""
    bad = ("false accept", "other function", "unexplained reject", "undecided", "verifier crash")
    keep = ("id", "subject", "kind", "op", "what", "line", "bindings", "outcome", "rules", "message", "judge", "judge_kind", "judge_first",
            "judge_message")  # fmt: skip
    listed = [{k: r[k] for k in keep} for r in sorted(records, key=lambda r: r["id"]) if r["outcome"] in bad]
    why = [{k: r[k] for k in ("id", "subject", "kind", "what", "line", "rules", "law")} for r in sorted(records, key=lambda r: r["id"])
           if r["outcome"] == "explained reject"]  # fmt: skip
    out = {
        "kind": "mutation", "commit": commit(), "seed": seed, "code": dict(Counter(r.get("code", "") for r in records)),
        "machines": dict(Counter(r.get("machine", "") for r in records)), **summary(records), "judge_tested": list(trials),
        "listed": listed, "explained": why,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(out, indent=1, sort_keys=False) + "\n", encoding="utf-8")


def judge_trials() -> list[dict[str, Any]]:
    """Every corruption of `corrupt`, as JSON objects."""
    from cake_ir.ops import registry
    from tests.mutation.corrupt import BLIND, try_value, try_verifier, users
    from tests.mutation.operators import SYNC_OPS

    found = []
    for op in sorted(op for op in registry() if op not in BLIND and users(op)):
        for trial in (try_value(op), *((try_verifier(op),) if op in SYNC_OPS else ())):
            found.append(asdict(trial))
            state = "shows" if trial.found else "DOES NOT SHOW"
            print(f"judge: {trial.name:24} {state}  {trial.example[:110]}", file=sys.stderr, flush=True)
    return found


def show(mutant: str, plan: Sequence[Entry]) -> int:
    """Prints the text of one mutant."""
    for e in plan:
        if e.id.startswith(mutant):
            m = mutation(e.subject, e.index)
            print(f"# {e.id} {e.subject}, {e.kind}: {e.what} (line {m.line})\n{text_of(m)}", end="")
            return 0
    print(f"no mutant {mutant}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    cli = argparse.ArgumentParser(prog="dev.py mutation", description="Mutation run over the verifier.")
    cli.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    cli.add_argument("--limit", type=int, default=0, help="at most so many mutants, drawn by the seed (0: all)")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--kernel", default="", help="only subjects whose name contains this")
    cli.add_argument("--kind", choices=KINDS, action="append", help="only these kinds (repeatable)")
    cli.add_argument("--shard", default="", metavar="I/N", help="part I of N, by id")
    cli.add_argument("--log", type=Path, default=LOG, help="resumable log (JSON lines)")
    cli.add_argument("--write", type=Path, help="write the report here (corpus/results/mutation.json)")
    cli.add_argument("--no-fixes", action="store_true", help="do not look for fixes (faster)")
    cli.add_argument("--no-judge-test", action="store_true", help="leave the test of the judge out of the report")
    cli.add_argument("--report", action="store_true", help="run nothing: report on what the log has")
    cli.add_argument("--any-code", action="store_true", help="count what other code has logged as well")
    cli.add_argument("--list", choices=OUTCOMES, help="list the logged mutants of an outcome and end")
    cli.add_argument("--show", metavar="ID", help="print the text of one mutant and end")
    args = cli.parse_args(argv)
    if args.list:
        for cause, members in groups(read_log(args.log).values(), args.list):
            print(f"{len(members):5}  {cause}")
            for r in members[:3]:
                print(
                    f"         {r['id'][:12]} {r['subject']} line {r['line']}: {r['what']}; {r['message'] or r['judge_message']}"[
                        :220
                    ]
                )
        return 0
    plan = full_plan(args.jobs, args.kernel)
    if args.show:
        return show(args.show, plan)
    if args.kind:
        plan = [e for e in plan if e.kind in args.kind]
    try:
        chosen = shard(sample(plan, args.limit, args.seed), args.shard)
    except ValueError as problem:
        print(f"--shard: {problem}", file=sys.stderr)
        return 2
    logged = read_log(args.log, "" if args.any_code else code_hash())
    todo = [] if args.report else [e for e in chosen if e.id not in logged]
    print(
        f"{len(plan)} mutants planned, {len(chosen)} chosen, {sum(e.id in logged for e in chosen)} already logged",
        file=sys.stderr,
        flush=True,
    )
    args.log.parent.mkdir(parents=True, exist_ok=True)
    with args.log.open("a", encoding="utf-8") as log:
        for r in with_progress(execute(todo, args.jobs, not args.no_fixes), len(todo)):
            logged[r["id"]] = r
            log.write(json.dumps(r, sort_keys=True) + "\n")
            log.flush()
    records = [logged[e.id] for e in chosen if e.id in logged]
    print(table(records))
    totals = summary(records)
    shown = ("mutants", "synchronisation", "refused_by_binder", "false_accepts", "accepted_other_function", "false_rejects_unexplained",
             "explained_share_of_rejects", "median_findings", "span_on_edit", "fix_offered", "verify_ms_p95",
             "verify_and_fix_ms_p95")  # fmt: skip
    print("\n".join(f"{k}: {totals[k]}" for k in shown))
    if args.write:
        trials = [] if args.no_judge_test else judge_trials()
        write(args.write, records, args.seed, trials)
        print(f"wrote {args.write}")
    clean = not (totals["false_accepts"] or totals["false_rejects_unexplained"] or totals["verifier_crashes"])
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
