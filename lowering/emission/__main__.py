"""Debugging: `python -m lowering.emission FILE.cake` prints the CUDA C++.

Options: --set NAME=VALUE, --kernel K, --target T, --timeline (the instrumented form), --build or --sass instead of the text.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import cake_ir
from cake_ir.diagnostics import CakeError
from lowering.emission import emit


def main() -> int:
    """0: printed; 1: the program has findings."""
    parser = argparse.ArgumentParser(prog="lowering.emission")
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kernel")
    parser.add_argument("--target")
    parser.add_argument("--build", action="store_true", help="compile and report instead")
    parser.add_argument("--sass", action="store_true", help="compile and print the machine code")
    parser.add_argument("--timeline", action="store_true", help="the instrumented form")
    args = parser.parse_args()
    parsed = cake_ir.parse(args.file.read_text(), name=args.file.name)
    bindings = {}
    for item in args.set:
        name, _, value = item.partition("=")
        try:
            bindings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            bindings[name] = value
    found = list(parsed.diagnostics)
    if parsed.file is not None:
        result = cake_ir.bind(parsed.file, bindings, args.target, args.kernel)
        found += result.diagnostics
        if result.bound is not None:
            try:
                emitted = emit(result.bound, timeline=args.timeline)
            except CakeError as exc:
                print(exc.diagnostic.render(), file=sys.stderr)
                return 1
            if not (args.build or args.sass):
                print(emitted.cuda)
                return 0
            from lowering.building import build

            built = build(emitted)
            if args.sass:
                print(built.sass.text)
                return 0
            for d in built.diagnostics:
                print(d.render())
            print(built.log)
            for key, value in built.report().items():
                print(f"{key}: {value}")
            return 0
    for d in found:
        print(d.render(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
