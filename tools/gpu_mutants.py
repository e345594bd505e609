"""Mutants on a borrowed GPU: ties the verifier's rules and the mutation engine's judge to the silicon. For developers only.

    python -m tools.gpu_mutants prepare DIR [--seed N] [--refuted 160] [--accepted 160] [--other 40]
    python -m tools.gpu_mutants run DIR OUT [--only sanitizer] [--timeout 4] [--workers 8] [--launches 12]     on the GPU machine
    python -m tools.gpu_mutants record DIR OUT

prepare draws mutants by seed, compiles them past the verifier with the locked NVRTC, and keeps every answer under
build/gpu_mutants_cache, so a stopped or repeated preparation costs little. run needs numpy, ml_dtypes, pydantic and
cuda-bindings. The server has no path to any of this.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "gpu_mutants_cache"
CLASSES_SANITIZED = {"refuted": 20, "accepted": 20}
SANITIZED_CONTROLS = {"corpus/gemm_sm90", "corpus/gemm_sm80", "corpus/softmax"}


class Store:
    """Answers by key in a JSON lines file."""

    def __init__(self, path: Path) -> None:
        from tests.mutation.silicon.runner import rows

        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.known: dict[str, Any] = {r["key"]: r["value"] for r in rows(path)}

    def add(self, key: str, value: Any) -> None:
        """Keep an answer."""
        self.known[key] = value
        with self._path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps({"key": key, "value": value}) + "\n")


def digest(*parts: str) -> str:
    """Names the code below some paths of the repository, without tests."""
    h = hashlib.sha256()
    for part in parts:
        top = ROOT / part
        for p in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if p.suffix in (".py", ".cake") and not p.name.startswith("test_"):
                h.update(str(p.relative_to(ROOT)).encode() + p.read_bytes())
    return h.hexdigest()[:12]


BASE = ("cake_ir", "corpus/kernels", "tests/data/sketches", "tests/mutation/subjects.py", "tests/mutation/silicon/programs.py")
DECIDES = {
    "plans": (*BASE, *(f"tests/mutation/{n}.py" for n in ("mutants", "operators", "operators_data", "operators_sync", "tree"))),
    "verdicts": (*BASE, "analyses", "lowering/emission", "tests/mutation/silicon/build.py"),
    "judged": (*BASE, "analyses/value", "tests/mutation/judge.py", "tests/reference", "corpus/contracts"),
    "makes": (*BASE, "lowering", "tests/mutation/silicon/build.py", "tests/mutation/silicon/delays.py"),
}
"""What decides each kind of answer; another helper's commit elsewhere costs nothing."""


def _plan(name: str, file: Path) -> list[dict[str, Any]]:
    """Entries of a program; the mutants' texts go to `file`, since enumerating them again is slow."""
    from tests.mutation.mutants import entries, mutations, text_of
    from tests.mutation.silicon.programs import program

    found = [asdict(e) for e in entries(program(name))]
    wanted = {e["index"]: e["id"] for e in found}
    texts = {wanted[i]: text_of(m) for i, m in enumerate(mutations(program(name))) if i in wanted}
    with gzip.open(file, "wt", encoding="utf-8", compresslevel=3) as sink:
        json.dump(texts, sink)
    return found


@cache
def _texts(file: Path) -> dict[str, str]:
    with gzip.open(file, "rt", encoding="utf-8") as source:
        return json.load(source)


@dataclass(frozen=True)
class Question:
    """A mutant for a worker process. mutant None: the program itself."""

    program: str
    mutant: str | None
    texts: Path
    accepted: bool = False

    @property
    def text(self) -> str | None:
        return None if self.mutant is None else _texts(self.texts)[self.mutant]


def _verdict(q: Question) -> dict[str, Any]:
    from tests.mutation.silicon.build import verdict

    return verdict(q.program, q.text or "")


def _judged(q: Question) -> dict[str, Any]:
    from tests.mutation.silicon.build import judged

    return judged(q.program, q.text or "", q.accepted)


def _make(q: Question) -> dict[str, Any]:
    from tests.mutation.silicon.build import Unfit, make

    try:
        return make(q.program, q.text, CACHE)
    except Unfit as why:
        return {"unfit": str(why)}


class Workshop:
    """Answers about mutants, from the stores or from a pool of processes."""

    def __init__(self, workers: int, logs: Sequence[Path], tell: Callable[[str], None]) -> None:
        self.digests = {n: digest(*parts) for n, parts in DECIDES.items()}
        self.stores = {n: Store(CACHE / f"{n}-{d}.jsonl") for n, d in self.digests.items()}
        self.pool, self.workers, self.tell = ProcessPoolExecutor(workers), workers, tell
        self.logged = _logged(logs)

    def texts(self, name: str) -> Path:
        return CACHE / f"texts-{self.digests['plans']}-{name.replace('/', '_')}.json.gz"

    def plan(self, names: Sequence[str]) -> list[Any]:
        """Every mutant once; a program that two subjects give counts for the first."""
        from tests.mutation.mutants import Entry

        known = self.stores["plans"]
        missing = [n for n in names if n not in known.known or not self.texts(n).exists()]
        for name, found in zip(missing, self.pool.map(_plan, missing, [self.texts(n) for n in missing]), strict=True):
            known.add(name, found)
        seen: dict[str, Entry] = {}
        for e in (Entry(**e) for n in names for e in known.known[n]):
            seen.setdefault(e.id, e)
        return list(seen.values())

    def answer(self, kind: str, f: Callable[[Question], Any], group: Sequence[Any], accepted: bool = False) -> list[Any]:
        """One answer per entry. Neighbours share a process, since a process reads a program's texts once."""
        store = self.stores[kind]
        todo = sorted((e for e in group if e.id not in store.known), key=lambda e: (e.subject, e.index))
        asked = [Question(e.subject, e.id, self.texts(e.subject), accepted) for e in todo]
        chunk = max(1, min(6, len(todo) // (2 * self.workers)))
        begin = time.monotonic()
        for e, value in zip(todo, self.pool.map(f, asked, chunksize=chunk), strict=True):
            store.add(e.id, value)
        if todo:
            self.tell(f"{kind}: {len(todo)} in {time.monotonic() - begin:.0f} s")
        return [store.known[e.id] for e in group]

    def judged(self, group: Sequence[Any], accepted: bool) -> list[Any]:
        """The judge's answers; those of a log of the engine count where they were given with the same patience."""
        for e in group:
            r = self.logged.get(e.id)
            if r and r["subject"] == e.subject and e.id not in self.stores["judged"].known and accepted == (not r["rules"]):
                said = {"state": r["judge"], "kind": r["judge_kind"], "first": r["judge_first"], "message": r["judge_message"][:300]}
                self.stores["judged"].add(e.id, {**said, "runs": 0})
        return self.answer("judged", _judged, group, accepted)

    def classes(self, group: Sequence[Any]) -> list[str]:
        """For `draw`."""
        from tests.mutation.silicon.build import class_of

        found = [v["class"] for v in self.answer("verdicts", _verdict, group)]
        ours = [e for e, c in zip(group, found, strict=True) if c == "accepted"]
        said = dict(zip((e.id for e in ours), self.judged(ours, True), strict=True))
        makes = self.stores["makes"].known
        unfit = {e.id for e in group if "unfit" in makes.get(e.id, {})}
        return [
            "unfit" if e.id in unfit else class_of(said[e.id]["state"]) if e.id in said else c
            for e, c in zip(group, found, strict=True)
        ]


def _logged(logs: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Records of engine logs that the judge has answered."""
    from tests.mutation.run import read_log

    return {i: r for path in logs for i, r in read_log(path).items() if r["judge"] and r["judge"] != "crash"}


def prepare(directory: Path, seed: int, wanted: dict[str, int], workers: int, kernel: str, logs: Sequence[Path]) -> int:
    """Draw, judge, compile and package."""
    from corpus.export import head_commit
    from tests.mutation.silicon.build import noise
    from tests.mutation.silicon.draw import draw, spread
    from tests.mutation.silicon.programs import program, programs

    begin = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True)

    directory.mkdir(parents=True, exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    chosen = [s.name for s in programs() if kernel in s.name]
    shop = Workshop(workers, logs, tell)
    plan = shop.plan(chosen) if any(wanted.values()) else []
    tell(f"{len(plan)} mutants of {len(chosen)} programs")
    while True:  # mutants that the compiler refuses are found only when they are drawn: draw again without them
        drawn = draw(plan, seed, wanted, shop.classes)
        everyone = [e for members in drawn.values() for e in members]
        tell(f"drawn {', '.join(f'{len(m)} {c}' for c, m in drawn.items())}")
        refused = [m["unfit"] for m in shop.answer("makes", _make, everyone) if "unfit" in m]
        if not refused:
            break
        tell(f"{len(refused)} refused by the compiler: {dict(Counter(r.split(':')[1] for r in refused))}")
    shop.judged(drawn["refuted"], False)
    own = [Question(n, None, shop.texts(n)) for n in chosen]
    controls = dict(zip(chosen, shop.pool.map(_make, own), strict=True))
    shop.pool.shutdown()
    makes, verdicts, judged = (shop.stores[n].known for n in ("makes", "verdicts", "judged"))
    jobs = [job(program(n), None, {"class": "control", "rules": [], "message": "", "judge": {}}, m) for n, m in controls.items()]
    for c, members in drawn.items():
        jobs += [job(program(e.subject), e, {**verdicts[e.id], "judge": judged[e.id], "class": c}, makes[e.id]) for e in members]
    sanitized = {i for c, n in CLASSES_SANITIZED.items() for i in _mixed(drawn[c], makes, n, seed, spread)}
    sanitized |= SANITIZED_CONTROLS & set(chosen)
    for j in jobs:
        j["sanitize"] = j["id"] in sanitized
    ours = noise(CACHE)
    package(directory, jobs, ours)
    meta = {
        "seed": seed, "wanted": wanted, "commit": head_commit(), "verifier": shop.digests["verdicts"], "noise": ours,
        "compiler": next(iter(controls.values()))["compiler"], "programs": chosen, "planned": len(plan),
        "command": f"python -m tools.gpu_mutants prepare DIR --seed {seed} " + " ".join(f"--{k.split()[0]} {v}" for k, v in wanted.items()),
    }  # fmt: skip
    (directory / "meta.json").write_text(json.dumps(meta, indent=1))
    size = sum(p.stat().st_size for p in directory.iterdir()) / 1e6
    tell(f"{len(jobs)} jobs, {len(sanitized)} for the sanitizers, {size:.1f} MB in {directory}")
    return 0


def _mixed(members: Sequence[Any], makes: dict[str, Any], number: int, seed: int, spread: Any) -> list[str]:
    """Half of them without asynchronous copies where there are enough: racecheck knows only those."""
    plain = spread([e for e in members if not makes[e.id]["tma"]], number // 2, seed)
    return plain + spread([e for e in members if makes[e.id]["tma"]], number - len(plain), seed)


def job(subject: Any, entry: Any, looked: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """One job as JSON."""
    bound = subject.bound(subject.bindings[0])
    about = {k: getattr(entry, k) for k in ("kind", "op", "sync", "what", "index")} if entry else {"kind": "none", "what": "unmutated"}
    return {
        "id": entry.id if entry else subject.name, "subject": subject.name, **about, "class": looked["class"],
        "rules": looked["rules"], "message": looked["message"], "judge": looked["judge"], "cubins": made["cubins"],
        "launches": made["launches"], "tma": made["tma"], "ordered": subject.ordered, "ragged": subject.ragged,
        "directions": {t.name: t.direction for t in bound.tensors},
    }  # fmt: skip


def package(directory: Path, jobs: Sequence[dict[str, Any]], noise: str) -> None:
    """jobs.jsonl and cubins.zip."""
    (directory / "jobs.jsonl").write_text("".join(json.dumps(j) + "\n" for j in jobs))
    with zipfile.ZipFile(directory / "cubins.zip", "w", zipfile.ZIP_DEFLATED) as z:
        for sha in sorted({noise, *(s for j in jobs for s in j["cubins"].values())}):
            z.write(CACHE / f"{sha}.cubin", sha)


def record(directory: Path, out: Path) -> int:
    """corpus/results/mutation-gpu.json from the rows of a run."""
    from tests.mutation.silicon.report import write

    path, text = write(directory, out)
    print(text)
    print(path)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    cli = argparse.ArgumentParser(prog="tools.gpu_mutants")
    cli.add_argument("step", choices=("prepare", "run", "record"))
    cli.add_argument("dir", type=Path)
    cli.add_argument("out", type=Path, nargs="?")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--refuted", type=int, default=160)
    cli.add_argument("--accepted", type=int, default=160)
    cli.add_argument("--other", type=int, default=40)
    cli.add_argument("--kernel", default="", help="only programs whose name contains this")
    cli.add_argument("--log", type=Path, action="append", default=[], help="logs of the mutation engine: answers of the judge")
    cli.add_argument("--jobs", type=int, default=2, help="processes of prepare")
    cli.add_argument("--only", action="append", default=[], help="a class, or `sanitizer`")
    cli.add_argument("--timeout", type=float, default=4.0, help="seconds one launch may take")
    cli.add_argument("--workers", type=int, default=8, help="mutants on the device at once")
    cli.add_argument("--launches", type=int, default=12, help="per cubin and problem")
    cli.add_argument("--limit", type=int, default=0, help="at most so many jobs (a trial)")
    a = cli.parse_args(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if a.step == "prepare":
        return prepare(a.dir, a.seed, {"refuted": a.refuted, "accepted": a.accepted, "other function": a.other}, a.jobs, a.kernel, a.log)
    if a.out is None:
        cli.error("OUT is missing")
    if a.step == "record":
        return record(a.dir, a.out)
    from tests.mutation.silicon.runner import run, run_sanitizer

    if "sanitizer" in a.only:
        return run_sanitizer(a.dir, a.out, workers=a.workers)
    return run(a.dir, a.out, workers=a.workers, launches=a.launches, timeout=a.timeout, only=a.only, limit=a.limit)


if __name__ == "__main__":
    sys.exit(main())
