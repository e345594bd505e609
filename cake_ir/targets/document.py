"""The target tables as Markdown: what `docs/targets.md` and the target pages of the server show."""

from __future__ import annotations

from cake_ir.targets.matrix import MmaSyncForm, NRule, Tcgen05Form, WgmmaForm
from cake_ir.targets.table import CHECKED_MEANING, Fact, Target


def value_text(fact: Fact) -> str:
    """The value as short text: 1.83e9 style for large floats, plain digits for integers."""
    if isinstance(fact.value, tuple):
        return ", ".join(str(v) for v in fact.value)
    if isinstance(fact.value, float) and abs(fact.value) >= 1e6:
        mantissa, exponent = f"{fact.value:.4e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return str(fact.value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def facts_table(target: Target) -> list[str]:
    """All facts of one target, one row each."""
    lines = ["| fact | value | unit | checked | source | note |", "| --- | --- | --- | --- | --- | --- |"]
    for key in sorted(target.facts):
        x = target.facts[key]
        cells = (f"`{key}`", value_text(x), x.unit, x.checked, x.source, x.note)
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    return lines


def features_table(targets: tuple[Target, ...]) -> list[str]:
    """Feature by target."""
    names = [t.name for t in targets]
    lines = ["| feature | " + " | ".join(names) + " | meaning | source |", "| --- " * (len(names) + 3) + "|"]
    for name, x in targets[0].feature_table.items():
        marks = ["x" if n in x.targets else "" for n in names]
        meaning = f"{x.meaning} ({x.note})" if x.note else x.meaning
        lines.append("| " + " | ".join([f"`{name}`", *marks, _cell(meaning), _cell(x.source)]) + " |")
    return lines


def _ranges(values: tuple[int, ...]) -> str:
    """Compact text of an ascending list: `8, 16, 24, 32..256 step 16`."""
    parts: list[str] = []
    i = 0
    while i < len(values):
        j = i + 1
        while j + 1 < len(values) and values[j + 1] - values[j] == values[i + 1] - values[i]:
            j += 1
        if j - i >= 3:
            parts.append(f"{values[i]}..{values[j]} step {values[i + 1] - values[i]}")
            i = j + 1
        else:
            parts.append(str(values[i]))
            i += 1
    return ", ".join(parts)


def wgmma_table(forms: tuple[WgmmaForm, ...]) -> list[str]:
    lines = ["| a | b | d | m | k | n | MN-major operands | d registers per thread |", "| --- " * 8 + "|"]
    for x in forms:
        per = f"n/{round(1 / x.d_regs_per_n)}"
        major = "smem a and b" if x.mn_major else "no"
        lines.append(f"| {x.a} | {x.b} | {x.d} | {x.m} | {x.k} | {_ranges(x.n_values)} | {major} | {per} |")
    return lines


def mma_sync_table(forms: tuple[MmaSyncForm, ...]) -> list[str]:
    """One row per (kind, d, shape); the operand types are gathered."""
    rows: dict[tuple[object, ...], list[str]] = {}
    for x in forms:
        scale = f"{x.scale} x{x.scale_vec}" if x.scale else ""
        key = (x.kind or "-", f"m{x.m}n{x.n}k{x.k}", x.d, f"{x.a_regs}, {x.b_regs}, {x.d_regs}", scale)
        rows.setdefault(key, []).append(f"{x.a} {x.b}")
    lines = ["| kind | shape | a b | d | registers a, b, d | scale |", "| --- " * 6 + "|"]
    for (kind, shape, d, regs, scale), pairs in rows.items():
        lines.append(f"| {kind} | {shape} | {', '.join(pairs)} | {d} | {regs} | {scale} |")
    return lines


def _n_rule(rule: NRule) -> str:
    extra = "".join(f"{n}, " for n in rule.extra)
    return f"m {' or '.join(str(m) for m in rule.m)}; n {extra}{rule.start}..{rule.stop} step {rule.step}"


def tcgen05_table(forms: tuple[Tcgen05Form, ...]) -> list[str]:
    lines = ["| kind | a, b | d | k | cta_group 1 | cta_group 2 | scale | note |", "| --- " * 8 + "|"]
    for x in forms:
        ab = ", ".join(x.ab) + (" (freely mixed)" if x.mixed else "")
        scale = f"{', '.join(x.scale)} per {x.block}" if x.scale else ""
        cells = (x.kind, ab, ", ".join(x.d), str(x.k), _n_rule(x.cg1), _n_rule(x.cg2), scale, x.note)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def target_page(target: Target) -> str:
    """Everything known about one target, as Markdown."""
    major, minor = target.compute_capability
    lines = [
        f"## {target.name}",
        "",
        f"{target.architecture}, compute capability {major}.{minor}. Per-device facts: {target.product}.",
        "",
        *facts_table(target),
    ]
    for title, table in (
        ("wgmma forms", wgmma_table(target.wgmma) if target.wgmma else []),
        ("mma.sync forms", mma_sync_table(target.mma_sync)),
        ("tcgen05.mma forms", tcgen05_table(target.tcgen05) if target.tcgen05 else []),
    ):
        if table:
            lines += ["", f"### {target.name}: {title}", "", *table]
    return "\n".join(lines)


def document(targets: tuple[Target, ...]) -> str:
    """The whole page."""
    lines = [
        "# Targets",
        "",
        "Generated by `tools/gen_docs.py` from `cake_ir/targets/`; do not edit.",
        "",
        "A target is matched by its exact name; nothing is stepped down to a neighbour. A fact that has no source is",
        "absent, not guessed. Rates are per SM and clock, a multiply-add counts as two flop.",
        "",
        "| checked | meaning |",
        "| --- | --- |",
        *(f"| {name} | {meaning} |" for name, meaning in CHECKED_MEANING.items()),
        "",
        "## Features",
        "",
        *features_table(targets),
    ]
    for target in targets:
        lines += ["", target_page(target)]
    return "\n".join(lines) + "\n"
