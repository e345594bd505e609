"""`corpus/results/cost-ranking.json`: the committed points held against the model as it stands.

`python -m corpus.ranking figures` makes it of the test set, with the ablation; `--check` makes it again and compares. With
`--set development` the figures are shown and nothing is written; `--table` shows every shape and point, worst first. `held` asks the
same of the file alone, in a second: its statistics follow from its predictions and the points, and a few predictions are made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus import evidence
from corpus.ranking import points as store
from corpus.ranking import statistics as st
from corpus.ranking.points import Left, Point, Points
from corpus.ranking.predict import WHOLE, Key, Prediction, ablations, predict
from corpus.ranking.workloads import WORKLOADS

PATH = evidence.DIRECTORY / "cost-ranking.json"
COMMAND = "python -m corpus.ranking figures"
SHOWN = ("spearman_median", "spearman_least", "regret_median", "regret_worst", "top3", "error_median", "error_p90")
QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
NEIGHBOURS = 0.03
"""How far apart the predictions of two neighbours are at least that are looked at."""
MADE_AGAIN = 6
"""Predictions that `held` makes again."""
Predictions = Mapping[Key, Prediction]


@dataclass(frozen=True)
class At:
    """One shape: what is kept of it in the order of drawing, what is not, and its noise (a fraction)."""

    workload: str
    shape: tuple[tuple[str, int], ...]
    points: tuple[Point, ...]
    left: tuple[Left, ...]
    noise: float

    def sample(self, predicted: Predictions) -> st.Sample:
        """Its points with their predictions."""
        return st.Sample(tuple(p.us for p in self.points), tuple(predicted[p.key].us for p in self.points), self.noise)


def shapes(found: Points) -> list[At]:
    """Every measured shape, thinned. A shape without enough candidates near the best keeps none."""
    out = []
    for s, usable, left in store.usable(found):
        kept = st.thinned([p.us for p in usable])
        best = min((p.us for p in usable), default=0.0)
        rest = [
            Left(p.workload, p.shape, p.id, p.us, _why(p.us / best, bool(kept)))
            for i, p in enumerate(usable)
            if i not in set(kept)
        ]
        key = store.shape_key(s.shape)
        out.append(At(s.workload, key, tuple(usable[i] for i in kept), (*left, *rest), st.noise(s.apart)))
    return out


def _why(over: float, kept: bool) -> str:
    """Why thinning leaves a candidate out that takes `over` times the best."""
    if not kept:
        return f"the shape has fewer than {st.LEAST // 2} within {st.NEAR:g} of the best"
    return (
        f"beyond {st.NEAR:g} of the best"
        if over > st.NEAR
        else f"beyond the {st.MOST} that are kept of a shape"
    )


def _short(x: Any) -> Any:
    return float(f"{x:.5g}") if isinstance(x, float) else x


def summary(rows: Sequence[At], predicted: Predictions) -> dict[str, Any]:
    """The figures of some shapes."""
    said = st.summarise([r.sample(predicted) for r in rows if r.points])
    claimed = [(p.us, predicted[p.key]) for r in rows for p in r.points]
    inside = [q.low <= us <= q.high for us, q in claimed if q.low is not None and q.high is not None]
    coverage = sum(inside) / len(inside) if inside and len(inside) == len(claimed) else None
    return {k: _short(v) for k, v in (asdict(said) | {"coverage": coverage}).items()}


def residuals(rows: Sequence[At], predicted: Predictions) -> dict[str, dict[str, float]]:
    """Measured over predicted, by bound class and of all: quantiles."""
    by_class: dict[str, list[float]] = {}
    for r in rows:
        for p in r.points:
            q = predicted[p.key]
            by_class.setdefault(q.bound_class or "unknown", []).append(p.us / q.us)
    every = [x for v in by_class.values() for x in v]
    return {
        name: {"points": len(v), **{q: _short(st.quantile(v, share)) for q, share in QUANTILES.items()}}
        for name, v in [*sorted(by_class.items()), ("all", every)]
    }


def neighbours(rows: Sequence[At], predicted: Predictions) -> dict[str, Any]:
    """Of pairs that differ in one tunable of one kernel at one shape, whose times can be told apart and whose predictions differ by more
    than `apart`: how many are in the right order. What advice about one tunable rests on."""
    pairs = right = 0
    for r in rows:
        apart = r.sample(predicted).apart() if r.points else None
        for i, a in enumerate(r.points):
            for j, b in enumerate(r.points[:i]):
                p, q = predicted[a.key].us, predicted[b.key].us
                if (
                    a.kernel != b.kernel
                    or apart is None
                    or not apart[i, j]
                    or max(p, q) <= (1 + NEIGHBOURS) * min(p, q)
                ):
                    continue
                if sum(v != b.bindings[k] for k, v in a.bindings.items()) == 1:
                    pairs += 1
                    right += (p > q) == (a.us > b.us)
    return {"pairs": pairs, "right": right, "apart": NEIGHBOURS}


def _named(rows: Sequence[At]) -> Iterator[tuple[str, list[At]]]:
    for name in WORKLOADS:
        own = [r for r in rows if r.workload == name]
        if own:
            yield name, own


def at_shape(r: At, predicted: Predictions) -> dict[str, Any]:
    """The figures of one shape."""
    s = r.sample(predicted)
    off = st.errors(s)
    return {
        "workload": r.workload, "shape": dict(r.shape), "points": len(r.points), "left_out": len(r.left), "noise": _short(r.noise),
        "spearman": _short(st.spearman(s)), "regret": _short(st.regret(s)), "rank_of_best": st.rank_of_best(s),
        "error_median": _short(st.quantile(off, 0.5)), "error_p90": _short(st.quantile(off, 0.9)),
    }  # fmt: skip


def model_digest() -> str:
    """Of the cost model's sources and the calibrations: what the predictions were made with."""
    root = evidence.DIRECTORY.parents[1]
    every = [
        *sorted((root / "analyses" / "cost").glob("*.py")),
        *sorted((root / "corpus" / "calibration").glob("*.json")),
    ]
    h = hashlib.sha256()
    for path in every:
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:16]


def build(found: Points, predicted: Mapping[str, Predictions], rows: Sequence[At], model: str) -> dict[str, Any]:
    """The file: see docs/cost-model.md, "How well it ranks"."""
    whole = predicted[WHOLE]
    kept = [r for r in rows if r.points]
    workloads = {
        name: {
            "contract": found.workloads[name].contract, "kernels": list(WORKLOADS[name].kernels), **summary(own, whole),
            "residuals": residuals(own, whole), "neighbours": neighbours(own, whole),
        }
        for name, own in _named(rows)
    }  # fmt: skip
    left = [
        {"workload": x.workload, "shape": dict(x.shape), "id": x.id, "us": _short(x.us), "why": x.why} for r in rows for x in r.left
    ]  # fmt: skip
    return {
        "kind": "cost-ranking", "format": 1, "set": found.set, "device": found.device,
        "driver": found.each(lambda w: str(w.device.get("driver", ""))), "compiler": found.each(lambda w: w.compiler),
        "date": found.each(lambda w: w.date), "commit": found.each(lambda w: w.commit), "seed": found.seed,
        "l2": found.l2, "source": f"corpus/results/ranking/{found.set}.json", "command": COMMAND, "model": model,
        **summary(rows, whole), "neighbours": neighbours(rows, whole),
        "workloads": workloads, "per_shape": [at_shape(r, whole) for r in kept], "left_out": left,
        "ablation": {a: _ablation(rows, p) for a, p in predicted.items()},
        "predictions": [
            {"workload": r.workload, "shape": dict(r.shape), "points": {p.id: _packed(whole[p.key]) for p in r.points}} for r in kept
        ],
    }  # fmt: skip


def _ablation(rows: Sequence[At], predicted: Predictions) -> dict[str, Any]:
    def few(own: Sequence[At]) -> dict[str, Any]:
        return {k: v for k, v in summary(own, predicted).items() if k in SHOWN}

    return {**few(rows), "workloads": {name: few(own) for name, own in _named(rows)}}


def _packed(q: Prediction) -> list[Any]:
    return [_short(q.us), _short(q.low), _short(q.high), q.bound_class]


def make(name: str, directory: Path = store.DIRECTORY, *, ablated: bool = True, processes: int = 2) -> dict[str, Any]:
    """The figures of a set, predicted now. Predictions are rounded to the digits that the file holds before anything is made of them.

    Raises CakeError `corpus/bad-results`.
    """
    found = store.read(name, directory)
    rows = shapes(found)
    model = model_digest()
    raw = predict(found, [p for r in rows for p in r.points], ablations() if ablated else (WHOLE,), processes)
    rounded = {a: {k: _rounded(q) for k, q in p.items()} for a, p in raw.items()}
    return build(found, rounded, rows, model)


def _rounded(q: Prediction) -> Prediction:
    return Prediction(_short(q.us), _short(q.low), _short(q.high), q.bound_class)


def write(made: Mapping[str, Any], path: Path = PATH) -> Path:
    """Write the file. Raises OSError."""
    return evidence.replace_text(path, store.lines(dict(made), 3) + "\n")


def read(path: Path = PATH) -> dict[str, Any]:
    """The file. Raises CakeError `corpus/bad-results`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] != "cost-ranking" or found["format"] != 1:
            raise ValueError("another kind of file")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _bad(f"{path.name}: {exc}") from exc
    return found


def differences(committed: Mapping[str, Any], made: Mapping[str, Any], apart: float = 1e-3) -> list[str]:
    """Where two such files say different things, the model's digest aside; numbers within `apart` of each other (a fraction) agree."""
    return list(_differ("", {**committed, "model": ""}, {**made, "model": ""}, apart))


def _differ(where: str, a: Any, b: Any, apart: float) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for k in sorted(a.keys() | b.keys()):
            if k not in a or k not in b:
                yield f"{where}.{k} is only {'made' if k in b else 'committed'}"
            else:
                yield from _differ(f"{where}.{k}", a[k], b[k], apart)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differ(f"{where}[{i}]", x, y, apart)
    elif isinstance(a, int | float) and isinstance(b, int | float):
        if abs(a - b) > apart * max(abs(a), abs(b)):
            yield f"{where} is {a}, made now {b}"
    elif a != b:
        yield f"{where} is {str(a)[:80]}, made now {str(b)[:80]}"


def held(directory: Path = store.DIRECTORY, path: Path = PATH, again: int = MADE_AGAIN) -> list[str]:
    """What in the committed file does not follow from the committed points and its own predictions, and which of `again` predictions,
    spread over the points, the model makes otherwise now. The ablation is taken as it is: `--check` makes it again."""
    committed = read(path)
    found = store.read(committed["set"], directory)
    rows = shapes(found)
    said = {
        (s["workload"], store.shape_key(s["shape"]), id_): Prediction(*packed)
        for s in committed["predictions"] for id_, packed in s["points"].items()
    }  # fmt: skip
    wanted = [p for r in rows for p in r.points]
    lost = [p.id for p in wanted if p.key not in said]
    if lost:
        return [f"no prediction of {lost[0]} ({len(lost)} such): run `{COMMAND}`"]
    made = build(found, {WHOLE: said}, rows, committed["model"])
    made["ablation"] = {**committed["ablation"], **made["ablation"]}
    out = differences(committed, made)
    some = wanted[:: max(1, len(wanted) // again)][:again]
    now = predict(found, some)[WHOLE]
    out += [f"{p.id} at {dict(p.shape)}: predicted {said[p.key].us} us, now {now[p.key].us:.5g}: run `{COMMAND}`"
            for p in some if abs(now[p.key].us / said[p.key].us - 1) > 1e-3]  # fmt: skip
    return out


def table(
    name: str, directory: Path = store.DIRECTORY, *, only: Sequence[str] = (), points: bool = True, every: bool = False,
    processes: int = 2,
) -> Iterator[str]:  # fmt: skip
    """The figures for people: per workload (`only` these, if any) and shape, and with `points` every point, those predicted worst first.
    every: those that thinning leaves out as well, marked with a minus (they are in no figure)."""
    found = store.read(name, directory)
    rows = [r for r in shapes(found) if not only or r.workload in only]
    thin = [Point(x.workload, x.shape, x.id, v.kernel, v.bindings, x.us, -1)
            for r in rows for x in r.left if every and x.us and x.why.endswith("of the best")
            for v in [found.workloads[x.workload].variants[x.id]]]  # fmt: skip
    whole = predict(found, [*(p for r in rows for p in r.points), *thin], processes=processes)[WHOLE]
    for work, own in _named(rows):
        yield f"== {work}: {_figures(summary(own, whole))}"
        for r in own:
            if r.points:
                f = at_shape(r, whole)
                f["best in place"] = f.pop("rank_of_best")
                yield f"-- {work} {_text(r.shape)}: {_figures({k: v for k, v in f.items() if k not in ('workload', 'shape')})}"
            else:
                yield f"-- {work} {_text(r.shape)}: {r.left[0].why if r.left else 'nothing measured'}"
            if points:
                more = [p for p in thin if p.workload == r.workload and p.shape == r.shape]
                yield from _points(r, more, whole)
    yield f"== all: {_figures(summary(rows, whole))}"
    for kind, q in residuals(rows, whole).items():
        yield f"   measured / predicted, {kind}: " + " ".join(f"{k} {v}" for k, v in q.items())


def _points(r: At, more: Sequence[Point], predicted: Predictions) -> Iterator[str]:
    every = [*r.points, *more]
    best = min((p.us for p in every), default=0.0)
    order = sorted(every, key=lambda p: predicted[p.key].us)
    for p in sorted(every, key=lambda p: -abs(predicted[p.key].us / p.us - 1)):
        q = predicted[p.key]
        bindings = " ".join(f"{k}={v}" for k, v in p.bindings.items())
        place = f"{order.index(p) + 1:2d}/{1 + sum(o.us < p.us for o in every):2d}"
        times = f"predicted {q.us:9.2f}  measured {p.us:9.2f} ({p.us / best:5.2f} of best)  place {place}"
        yield f" {'-' if p.draw < 0 else ' '} {q.us / p.us - 1:+7.1%}  {times}  {q.bound_class:12} {p.kernel} {bindings}"


def _text(shape: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{k}={v}" for k, v in shape)


def _figures(f: Mapping[str, Any]) -> str:
    return ", ".join(f"{k.replace('_', ' ')} {v if v is not None else '-'}" for k, v in f.items())


def _bad(message: str) -> CakeError:
    law = f"corpus/results/{PATH.name} is what `{COMMAND}` writes."
    return CakeError(error("corpus/bad-results", "data", message, contract=law))
