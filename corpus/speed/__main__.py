"""Command line of the speed tables; see the package's text."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

from cake_ir.diagnostics import CakeError
from corpus.speed.tables import MEASURED

CUTE = "a Python with nvidia-cutlass-dsl and flashlib"


def prepare(directory: Path, python: str | None) -> None:
    """Compile ours, and the CuTe DSL peer with another Python that has its compiler."""
    from corpus.export import head_commit
    from corpus.speed import ours, shapes

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "commit").write_text(head_commit() + "\n", encoding="utf-8")
    for line in ours.prepare(directory):
        print(line)
    if python is not None:
        script = Path(__file__).with_name("cute_build.py")
        sizes = [f"{s['N']},{s['C']},{s['D']}" for s in shapes.LARGE if s["B"] == 1]
        subprocess.run([python, str(script), str(directory / "cute"), *sizes], check=True)


def main(argv: list[str] | None = None) -> int:
    """Exit code 1: something could not be prepared, measured or recorded."""
    parser = argparse.ArgumentParser(prog="corpus.speed", description="The published speed tables.")
    steps = parser.add_subparsers(dest="step", required=True)
    p = steps.add_parser("prepare", help="compile everything into DIR")
    p.add_argument("dir", type=Path)
    p.add_argument("--cute", metavar="PYTHON", help=CUTE)
    r = steps.add_parser("run", help="measure on a GPU, into OUT/speed.json")
    r.add_argument("dir", type=Path)
    r.add_argument("out", type=Path)
    r.add_argument("--table", action="append", default=[], choices=tuple(MEASURED))
    r.add_argument("--quick", action="store_true", help="a smoke run of a few shapes, which `record` refuses")
    r.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="leave out tables that do not fit")
    c = steps.add_parser("record", help="OUT/speed.json into corpus/results/speed/ and docs/speed.md")
    c.add_argument("out", type=Path)
    a = parser.parse_args(argv)
    try:
        if a.step == "prepare":
            prepare(a.dir, a.cute)
        elif a.step == "run":
            from corpus.speed.run import run

            print(run(a.dir, a.out, a.table, quick=a.quick, budget_s=a.budget))
        else:
            from corpus.speed.record import record

            for path in record(a.out):
                print(path)
    except CakeError as exc:
        print(f"error[{exc.diagnostic.rule}]: {exc.diagnostic.message}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, FileNotFoundError, PermissionError) as exc:
        print(f"compiling the CuTe DSL peer failed: {exc}; --cute names {CUTE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
