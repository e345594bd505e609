"""Command line of the ranking evidence; see the package's text."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from cake_ir.diagnostics import CakeError
from corpus.ranking.workloads import DRAWS, POOL, SEEDS, SETS, TARGET, WORKLOADS, workload


def _prepare(a: argparse.Namespace) -> int:
    from corpus.export import head_commit
    from corpus.ranking.prepare import folder_bytes, gpu_s, prepare, rejections

    seed = SEEDS[a.set] if a.seed is None else a.seed
    made = {}
    for name in a.workload or WORKLOADS:

        def progress(done: float, total: float | None, what: str, name: str = name) -> None:
            if sys.stderr.isatty():
                print(f"\r{name} {done:g}/{total or 0:g} {what[:90]:90}", end="", file=sys.stderr, flush=True)

        made[name] = prepare(
            workload(name), a.dir / name, which=a.set, target=TARGET, seed=seed, draws=a.draws, most=a.pool, progress=progress,
            command=f"python -m corpus.ranking prepare DIR --set {a.set} --seed {seed} --draws {a.draws} --pool {a.pool} --workload {name}",
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), commit=head_commit(),
        )  # fmt: skip
        m = made[name]
        points = sum(len(ids) for e in m.shapes for ids in e.candidates.values())
        counts = ", ".join(f"{n} {why}" for why, n in rejections(m).items())
        print(f"{name}: {len(m.shapes)} shapes, {points} points of {len(m.candidates)} candidates; about {gpu_s(m):.0f} s of GPU; "
              f"rejected: {counts or 'none'}; {m.prepare_s:.0f} s")  # fmt: skip
    total = sum(gpu_s(m) for m in made.values())
    print(f"about {total:.0f} s of GPU, {folder_bytes(a.dir, made) / 1e6:.1f} MB in {a.dir}")
    return 0


def _record(a: argparse.Namespace) -> int:
    from corpus.ranking.record import record

    path = record(a.dir, a.out)
    print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
    return 0


def _figures(a: argparse.Namespace) -> int:
    from corpus.ranking import figures
    from corpus.ranking.predict import SAID

    if a.table:
        for line in figures.table(a.set, only=a.workload, points=not a.short, every=a.every):
            print(line)
        return 0
    made = figures.make(a.set, ablated=a.ablation or a.set == "test")
    if a.check:
        wrong = figures.differences(figures.read(), made)
        print("\n".join(wrong[:20]) or "the committed figures are what the points and the model give")
        return int(bool(wrong))
    for name, f in [
        *made["workloads"].items(),
        ("all", made),
        *((SAID.get(n, f"without {n}"), f) for n, f in made["ablation"].items()),
    ]:
        print(f"{name}: " + ", ".join(f"{k.replace('_', ' ')} {f[k]}" for k in figures.SHOWN))
    if a.set == "test":
        print(figures.write(made))
    return 0


def _spread(a: argparse.Namespace) -> int:
    from corpus.ranking import spread

    print(spread.write(spread.make()))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit code 1: something could not be prepared, measured or recorded."""
    parser = argparse.ArgumentParser(prog="corpus.ranking", description="How well the cost model ranks schedules.")
    steps = parser.add_subparsers(dest="step", required=True)
    p = steps.add_parser("prepare", help="draw and compile into DIR, for a machine with a GPU")
    p.add_argument("dir", type=Path)
    p.add_argument("--set", choices=SETS, required=True)
    p.add_argument("--seed", type=int, help="of the draws; default: the set's own")
    p.add_argument("--draws", type=int, default=DRAWS, help="candidates at a shape")
    p.add_argument("--pool", type=int, default=POOL, help="most compiled candidates of a workload")
    r = steps.add_parser("run", help="measure on a GPU, into OUT/WORKLOAD.jsonl")
    r.add_argument("dir", type=Path)
    r.add_argument("out", type=Path)
    r.add_argument("--device", type=int, default=0)
    r.add_argument("--budget", type=float, default=600.0, metavar="SECONDS")
    c = steps.add_parser("record", help="the journals in OUT into corpus/results/ranking/SET.json")
    c.add_argument("dir", type=Path)
    c.add_argument("out", type=Path)
    f = steps.add_parser(
        "figures", help="the committed points against the model, into corpus/results/cost-ranking.json"
    )
    f.add_argument("--set", choices=SETS, default="test")
    f.add_argument(
        "--table",
        action="store_true",
        help="show every shape and point, worst first (of --workload, if given); write nothing",
    )
    f.add_argument("--short", action="store_true", help="with --table: shapes only")
    f.add_argument("--every", action="store_true", help="with --table: points that thinning leaves out as well")
    f.add_argument("--ablation", action="store_true", help="of the development set too")
    f.add_argument("--check", action="store_true", help="make the figures again and compare; write nothing")
    steps.add_parser(
        "spread", help="the interval of predictions from the development set, into corpus/calibration/spread"
    )
    for step in (p, r, f):
        step.add_argument("--workload", action="append", default=[], choices=tuple(WORKLOADS))
    a = parser.parse_args(argv)
    try:
        if a.step != "run":
            return {"prepare": _prepare, "record": _record, "figures": _figures, "spread": _spread}[a.step](a)
        from corpus.ranking.run import run

        return run(a.dir, a.out, a.workload, a.device, a.budget)
    except CakeError as exc:
        print(f"error[{exc.diagnostic.rule}]: {exc.diagnostic.message}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
