"""Variants of route tables: made from corpus kernels, compiled into a cubin cache, brought up to date with the compiler.

The tuner makes tables from measurements; `untuned` makes one that only knows what serves what (no routes, fallbacks in order).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cake_ir.fault import CakeError, fault
from corpus.routes import Table, Variant
from lowering.cache import CubinCache

Binding = int | float | bool | str

UNTUNED: dict[str, tuple[tuple[str, ...], tuple[tuple[str, dict[str, Binding], str], ...]]] = {
    "row_norms": (("M", "D"), (("row_norms", {}, "bf16"), ("row_norms", {"DT": "f16"}, "f16"))),
}
"""Families that are too small to tune: dims, and (kernel, bindings, dtype) of each variant."""


def recipe_of(
    kernel: str, bindings: Mapping[str, Binding], target: str
) -> tuple[dict[str, Any], dict[str, Any], str, str]:
    """(recipe, emitted kernel by cubin key, content id, variant id) of a corpus kernel or program. Raises CakeError of the first fault."""
    from cake_ir import content_id, parse, variant_id
    from corpus import executable
    from corpus.kernels import kernel as corpus_kernel
    from lowering.cache import cubin_key
    from lowering.compile import DEFAULT_OPTIONS

    entry = corpus_kernel(kernel)
    parsed = parse(entry.text())
    if parsed.file is None:
        raise CakeError(parsed.diagnostics[0])
    values = {**entry.bindings, **bindings}
    made = executable.load(parsed.file, values, target, entry.kernel)
    by_key = {cubin_key(e.cuda, e.arch, DEFAULT_OPTIONS): e for e in made.emitted}
    recipe = json.loads(json.dumps(made.recipe))
    return recipe, by_key, content_id(parsed.file), variant_id(parsed.file, values, target, entry.kernel or made.name)


def make_variant(name: str, kernel: str, bindings: Mapping[str, Binding], dtype: str, target: str) -> Variant:
    """A variant of a corpus kernel or program. Raises CakeError of the first fault."""
    recipe, _, content, variant = recipe_of(kernel, bindings, target)
    return Variant(name, kernel, dtype, recipe, dict(bindings), content, variant)


def untuned(
    family: str, target: str, dims: Iterable[str], members: Iterable[tuple[str, Mapping[str, Binding], str]]
) -> Table:
    """A table without routes: (kernel, bindings, dtype) of each fallback, in order."""
    found = [make_variant(_name(*m), *m, target) for m in members]
    variants = {v.id: v for v in found}
    table = Table(family, target, tuple(dims), variants, (), tuple(variants), validation={"untuned": True})
    table.check()
    return table


def refreshed(table: Table) -> Table:
    """The table with the recipes and cubin keys of this version's compiler: routes and their evidence stay.

    `validation["text_changed"]` lists variants whose kernel has another text than the one that was measured: their routes are
    obeyed, and want to be tuned anew.
    """
    new = {v.id: make_variant(v.id, v.kernel, v.bindings, v.dtype, table.target) for v in table.variants.values()}
    validation = dict(table.validation)
    changed = {i for i, v in new.items() if v.content_id != table.variants[i].content_id}
    changed |= set(validation.get("text_changed", ()))
    if changed and not validation.get("untuned"):
        validation["text_changed"] = sorted(changed)
    out = replace(table, variants=new, validation=validation)
    out.check()
    return out


def table_text(table: Table) -> bytes:
    """The bytes of a table file."""
    return (json.dumps(table.to_json(), indent=1) + "\n").encode()


def compile_variant(variant: Variant, target: str, cache: str | os.PathLike[str]) -> dict[str, bytes]:
    """Compile what is missing of a variant into the cubin cache; its cubins by key.

    Raises CakeError: `dispatch/stale-table` when this version would compile something else than the table was made with,
    `lowering/compiler-missing` and the compiler's other errors.
    """
    from lowering.compile import compile_cuda

    store = CubinCache(Path(cache))
    out: dict[str, bytes] = {}
    missing = []
    for key in variant.cubin_keys:
        found = store.cubin(key)
        if found is not None:
            out[key] = found
        else:
            missing.append(key)
    if not missing:
        return out
    recipe, emitted, _, _ = recipe_of(variant.kernel, variant.bindings, target)
    if recipe != variant.recipe:
        raise fault(
            "dispatch/stale-table",
            f"variant {variant.id} was made with another version of Cake or of {variant.kernel}; write the table anew with `cake tune`, "
            "or keep its routes with `python -m corpus.recipes refresh FILE`",
            contract="A table's kernels are those that were measured.",
        )  # fmt: skip
    for key in missing:
        compiled = compile_cuda(emitted[key].cuda, emitted[key].arch)
        store.put(
            key,
            {
                "cubin": base64.b64encode(compiled.cubin).decode(),
                "nvrtc": compiled.nvrtc_version,
                "symbol": emitted[key].symbol,
            },
        )
        out[key] = compiled.cubin
    return out


def _name(kernel: str, bindings: Mapping[str, Binding], dtype: str) -> str:
    return "-".join([kernel, *(f"{k.replace('.', '-')}{v}" for k, v in bindings.items()), dtype])


def main(argv: list[str]) -> int:
    """`refresh FILE...`: bring tables up to date; `check FILE...`: 1 if one is stale; `untuned TARGET`: write the tables of UNTUNED."""
    from corpus import files, routes

    verb, *paths = argv or ["help"]
    if verb == "untuned" and len(paths) == 1:
        for family, (dims, members) in UNTUNED.items():
            path = routes.DIRECTORY / f"{family}.{paths[0]}.json"
            files.replace(path, table_text(untuned(family, paths[0], dims, members)))
            print(path)
        return 0
    if verb not in ("refresh", "check") or not paths:
        print(
            "python -m corpus.recipes refresh|check corpus/families/NAME.TARGET.json ...\npython -m corpus.recipes untuned TARGET"
        )
        return 2
    stale = 0
    for path in map(Path, paths):
        old = Table.from_json(json.loads(path.read_bytes()))
        new = refreshed(old)
        if new == old:
            continue
        stale += 1
        if verb == "refresh":
            files.replace(path, table_text(new))
        print(f"{path}: {'brought up to date' if verb == 'refresh' else 'stale'}")
    return 1 if stale and verb == "check" else 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
