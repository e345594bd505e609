"""Route tables: which variant of a family serves which shape. Plain data and pure functions.

A table (`corpus/families/NAME.TARGET.json`) is measured by the tuner and obeyed by the dispatcher at every new shape, so this
module imports neither numpy nor pydantic. A table is untrusted input: it is checked field by field when it is read.

A route's guard is a conjunction of comparisons of a *term* with a constant. A term is an expression (see `lowering.sizes`) over
the family's dims, `sms` (multiprocessors of the device at hand) and the table's `derived` counts, which are expressions over the
dims, `sms` and earlier counts. A variant's recipe (see `lowering.recipe`) holds all that a launch needs, and under `admits` the
kernel's own conditions: a route is never taken for a shape that its kernel does not admit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from cake_ir.fault import CakeError, fault
from lowering.sizes import Expression, expression

FORMAT = 1
DIRECTORY = Path(__file__).parent / "families"
MOST_ROUTES = 4096
MOST_VARIANTS = 1024
MOST_PARTS = 256
"""Comparisons of a guard, derived counts, conditions and launches of a recipe: each costs time at the first call."""
MOST_SMS = 1024
MAX_BYTES = 16 << 20
"""Of a table file."""
OPERATORS = ("<", "<=", ">", ">=", "==", "!=")
FALLBACK = -1
"""The index of a choice that no route made."""

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass(frozen=True)
class Comparison:
    """`term op value`: term is the text of an expression, for example `B * ceil_div(N, 192)` or the name of a derived count."""

    term: str
    op: str
    value: int

    def __str__(self) -> str:
        return f"{self.term} {self.op} {self.value}"

    def negated(self) -> Comparison:
        """The comparison that holds exactly where this one does not."""
        return Comparison(self.term, _NEGATED[self.op], self.value)

    def to_json(self) -> list[Any]:
        """[term, op, value]"""
        return [self.term, self.op, self.value]


@dataclass(frozen=True)
class Variant:
    """A compiled seed. `bindings` are its tunables, `recipe` what a launch needs (`lowering.recipe`: cubin keys, arguments,
    sizes, conditions), `dtype` the element type that callers select it by."""

    id: str
    kernel: str
    dtype: str
    recipe: dict[str, Any]
    bindings: dict[str, Any] = field(default_factory=dict)
    content_id: str = ""
    variant_id: str = ""

    @property
    def cubin_keys(self) -> tuple[str, ...]:
        """Keys of the compiled kernels in the cubin cache, each once, in launch order."""
        return tuple(dict.fromkeys(k["cubin_key"] for k in self.recipe.get("launches", ()) if "cubin_key" in k))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {k: getattr(self, k) for k in _VARIANT}


@dataclass(frozen=True)
class Route:
    """Shapes that satisfy every comparison of `guard` go to the variant. `evidence` are ids of the measurements that pay for
    it, `gain` the time ratio over the route that would serve its shapes otherwise, `shapes` how many tuning shapes it serves."""

    variant: str
    guard: tuple[Comparison, ...]
    evidence: tuple[str, ...] = ()
    gain: float = 1.0
    shapes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        out: dict[str, Any] = {k: getattr(self, k) for k in _ROUTE}
        return out | {"guard": [c.to_json() for c in self.guard], "evidence": list(self.evidence)}


@dataclass(frozen=True)
class Choice:
    """What `choose` decided: `index` is the route's place in the table (FALLBACK when none matched), `reason` says why in words."""

    variant: Variant
    index: int
    reason: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A family's routes on one target. The first route whose guard holds wins; `fallback` lists variants that are tried in order
    where none does. `device` says where it was measured (name, sms), `compiler` with what, `validation` what the tuner proved."""

    family: str
    target: str
    dims: tuple[str, ...]
    variants: dict[str, Variant]
    routes: tuple[Route, ...]
    fallback: tuple[str, ...]
    derived: dict[str, str] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    compiler: str = ""
    validation: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of a table file."""
        return {
            "format": FORMAT, "family": self.family, "target": self.target, "device": self.device, "compiler": self.compiler,
            "dims": list(self.dims), "derived": self.derived, "variants": [v.to_json() for v in self.variants.values()],
            "routes": [r.to_json() for r in self.routes], "fallback": list(self.fallback), "validation": self.validation,
        }  # fmt: skip

    @staticmethod
    def from_json(obj: object) -> Table:
        """Read and check a table; raises CakeError `dispatch/bad-table` that names the field."""
        top = _record(obj, "table", _TABLE, ("family", "target", "dims", "variants", "routes", "fallback"))
        if top.pop("format", None) != FORMAT:
            _bad(f"table.format is not {FORMAT}; write the table anew with this version's `cake tune`")
        found = [_variant(v, f"variants[{i}]") for i, v in enumerate(_list(top["variants"], "variants"))]
        variants = {v.id: v for v in found}
        if len(variants) != len(found):
            _bad("variants have distinct ids")
        routes = [_route(r, f"routes[{i}]") for i, r in enumerate(_list(top["routes"], "routes"))]
        derived = _typed(top.get("derived", {}), dict, "derived")
        table = Table(
            family=_typed(top["family"], str, "family"), target=_typed(top["target"], str, "target"),
            dims=_strings(top["dims"], "dims"), variants=variants, routes=tuple(routes),
            fallback=_strings(top["fallback"], "fallback"), derived={k: _typed(v, str, f"derived.{k}") for k, v in derived.items()},
            device=_typed(top.get("device", {}), dict, "device"), compiler=_typed(top.get("compiler", ""), str, "compiler"),
            validation=_typed(top.get("validation", {}), dict, "validation"),
        )  # fmt: skip
        table.check()
        return table

    def check(self) -> None:
        """Raise CakeError `dispatch/bad-table` unless every name resolves and every expression is one."""
        for where, name in [(f"routes[{i}].variant", r.variant) for i, r in enumerate(self.routes)] + [
            ("fallback", name) for name in self.fallback
        ]:
            if name not in self.variants:
                _bad(f"{where}: no variant {name!r}; known: {', '.join(self.variants) or 'none'}")
        sms = self.device.get("sms", 132)
        if type(sms) is not int or not 0 < sms <= MOST_SMS:
            _bad("device.sms is a number of multiprocessors")
        if len(self.routes) > MOST_ROUTES:
            _bad(f"{len(self.routes)} routes; at most {MOST_ROUTES}")
        if max(len(self.variants), len(self.fallback)) > MOST_VARIANTS:
            _bad(
                f"{len(self.variants)} variants, {len(self.fallback)} of them to fall back on; at most {MOST_VARIANTS}"
            )
        most = max([len(self.derived), *(len(r.guard) for r in self.routes)])
        if most > MOST_PARTS:
            _bad(f"{most} derived counts or comparisons of a guard; at most {MOST_PARTS}")
        clash = sorted({"sms", *self.dims}.intersection(self.derived))
        if clash:
            _bad(f"derived.{clash[0]} has the name of an extent")
        try:
            _ = self._derived, self._guards, self._admits
        except CakeError as exc:
            _bad(exc.diagnostic.message)

    def environment(self, dims: Mapping[str, int], sms: int) -> dict[str, int]:
        """All values that guards read: dims, `sms`, derived counts. Raises CakeError `dispatch/bad-dims`."""
        env: dict[str, Any] = {"sms": sms}
        for name in self.dims:
            value = dims.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise fault(
                    "dispatch/bad-dims", f"{self.family} needs the extent {name} as a whole number, got {value!r}",
                    contract=f"Shapes of {self.family} give {', '.join(self.dims)}.",
                )  # fmt: skip
            env[name] = value
        for name, value in self._derived:
            env[name] = value(env)
        return env

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return ("sms", *self.dims, *self.derived)

    @cached_property
    def _derived(self) -> list[tuple[str, Expression]]:
        out, known = [], ["sms", *self.dims]
        for name, text in self.derived.items():
            out.append((name, expression(text, known)))
            known.append(name)
        return out

    @cached_property
    def _guards(self) -> list[Callable[[Mapping[str, Any]], bool]]:
        return [_conjunction(r.guard, self._names) for r in self.routes]

    @cached_property
    def _admits(self) -> dict[str, list[tuple[Expression, str]]]:
        names = ("sms", *self.dims)
        return {
            v.id: [(expression(text, names), why) for text, why in v.recipe.get("admits", ())]
            for v in self.variants.values()
        }

    def refusal(self, variant: str, env: Mapping[str, Any]) -> str | None:
        """Why the variant's kernels do not admit the shape, in words; None when they do."""
        for holds, why in self._admits[variant]:
            if not holds(env):
                return why
        return None


def choose(table: Table, dims: Mapping[str, int], dtype: str, sms: int | None = None) -> Choice:
    """The variant that serves a shape.

    Args:
        table: a checked table.
        dims: extents by name, all of `table.dims`.
        dtype: as in `Variant.dtype`.
        sms: multiprocessors of the device; that of the table's device when left out.

    Returns:
        The first route of that dtype whose guard holds and whose variant admits the shape, else the first fallback that does.

    Raises:
        CakeError: `dispatch/bad-dims`; `dispatch/not-admitted` names what each fallback asks for.
    """
    env = table.environment(dims, sms if sms is not None else int(table.device.get("sms", 132)))
    for i, (route, holds) in enumerate(zip(table.routes, table._guards, strict=True)):
        variant = table.variants[route.variant]
        if variant.dtype == dtype and holds(env) and table.refusal(variant.id, env) is None:
            guard = " and ".join(map(str, route.guard)) or "every shape"
            return Choice(variant, i, f"route {i}: {guard}", route.evidence)
    why: list[str] = []
    for name in table.fallback:
        variant = table.variants[name]
        if variant.dtype != dtype:
            continue
        reason = table.refusal(name, env)
        if reason is None:
            return Choice(variant, FALLBACK, "fallback: no route's guard holds")
        why.append(reason)
    known = sorted({v.dtype for v in table.variants.values()})
    shape = ", ".join(f"{k}={env[k]}" for k in table.dims)
    if dtype not in known:
        text = f"{table.family} has no variant for {dtype} on {table.target}; it has {', '.join(known) or 'none'}"
    else:
        text = f"no variant of {table.family} serves {shape}: " + (
            "; ".join(dict.fromkeys(why)) or "the table has no fallback"
        )
    raise fault(
        "dispatch/not-admitted", text, contract="A shape is served by a route or by the fallback of its family."
    )


def load(family: str, target: str, directory: Path = DIRECTORY) -> Table:
    """The committed table; raises CakeError `dispatch/no-table` or `dispatch/bad-table`."""
    named = family.isidentifier() and target.isidentifier()
    try:
        if not named:  # a name, not a way to another file
            raise FileNotFoundError
        with (directory / f"{family}.{target}.json").open("rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
    except FileNotFoundError:
        known = sorted(p.name.split(".")[1] for p in directory.glob(f"{family}.*.json")) if named else []
        raise fault(
            "dispatch/no-table",
            f"{family} has no route table for {target} (tables: {', '.join(known) or 'none'}); make one on such a GPU with "
            f"`cake tune {family}`",
            contract="The dispatcher obeys a table that was measured on the GPU's own target.",
        ) from None  # fmt: skip
    except OSError as exc:
        _bad(f"{family}.{target}.json cannot be read from {directory}: {exc.strerror}")
    name = f"{family}.{target}.json"
    if len(raw) > MAX_BYTES:
        _bad(f"{name} is larger than {MAX_BYTES >> 20} MiB")
    try:
        table = Table.from_json(json.loads(raw))
    except (ValueError, RecursionError) as exc:
        _bad(f"{name} is not JSON: {exc}")
    if (table.family, table.target) != (family, target):
        _bad(f"{name} holds the table of {table.family} on {table.target}")
    return table


def _conjunction(guard: tuple[Comparison, ...], names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], bool]:
    parts = [expression(f"({c.term}) {c.op} {c.value}", names) for c in guard]
    return lambda env: all(p(env) for p in parts)


_TABLE = (
    "format",
    "family",
    "target",
    "device",
    "compiler",
    "dims",
    "derived",
    "variants",
    "routes",
    "fallback",
    "validation",
)
_VARIANT = ("id", "kernel", "dtype", "bindings", "content_id", "variant_id", "recipe")
_ROUTE = ("variant", "guard", "evidence", "gain", "shapes")


def _variant(obj: object, where: str) -> Variant:
    v = _record(obj, where, _VARIANT, ("id", "kernel", "dtype", "recipe"))
    kinds = {"recipe": dict, "bindings": dict}
    v = {k: _typed(x, kinds.get(k, str), f"{where}.{k}") for k, x in v.items()}
    check_recipe(v["recipe"], f"{where}.recipe")
    return Variant(**v)


def check_recipe(recipe: Mapping[str, Any], where: str) -> None:
    """Raise CakeError `dispatch/bad-table` unless a recipe's conditions and launches have their form; `lowering.recipe.concrete` checks
    what is in them."""
    for part in ("admits", "launches", "tensors", "workspaces"):
        if len(_list(recipe.get(part, []), f"{where}.{part}")) > MOST_PARTS:
            _bad(f"{where}.{part} has {len(recipe[part])} entries; at most {MOST_PARTS}")
    for i, pair in enumerate(recipe.get("admits", [])):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            _bad(f"{where}.admits[{i}] is [condition, reason]")
    for i, step in enumerate(recipe.get("launches", [])):
        _typed(
            _typed(step, dict, f"{where}.launches[{i}]").get("manifest", {}), dict, f"{where}.launches[{i}].manifest"
        )


def _route(obj: object, where: str) -> Route:
    r = _record(obj, where, _ROUTE, ("variant", "guard"))
    guard = []
    for i, c in enumerate(_list(r["guard"], f"{where}.guard")):
        if (
            not isinstance(c, list)
            or len(c) != 3
            or not isinstance(c[0], str)
            or c[1] not in OPERATORS
            or type(c[2]) is not int
        ):
            _bad(f"{where}.guard[{i}] is [term, operator, integer] with an operator out of {' '.join(OPERATORS)}")
        guard.append(Comparison(*c))
    gain, shapes = r.get("gain", 1.0), r.get("shapes", 0)
    if isinstance(gain, bool) or not isinstance(gain, (int, float)) or not abs(gain) < 1e9 or type(shapes) is not int:
        _bad(f"{where}: gain is a number, shapes a whole number")
    evidence = _strings(r.get("evidence", []), f"{where}.evidence")
    return Route(_typed(r["variant"], str, f"{where}.variant"), tuple(guard), evidence, float(gain), shapes)


def _record(obj: object, where: str, keys: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
    record = _typed(obj, dict, where)
    missing, unknown = [k for k in needed if k not in record], sorted(str(k) for k in record if k not in keys)
    if missing or unknown:
        _bad(f"{where}: missing {', '.join(missing) or 'nothing'}, unknown {', '.join(unknown) or 'nothing'}")
    return dict(record)


def _typed(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        _bad(f"{where} is not {'an object' if kind is dict else 'a text' if kind is str else 'a list'}")
    return value


def _list(value: object, where: str) -> list[Any]:
    return _typed(value, list, where)


def _strings(value: object, where: str) -> tuple[str, ...]:
    return tuple(_typed(x, str, f"{where}[{i}]") for i, x in enumerate(_list(value, where)))


def _bad(message: str) -> NoReturn:
    raise fault(
        "dispatch/bad-table", message, contract="A route table names variants, extents and expressions that exist."
    )
