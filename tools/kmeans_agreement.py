"""Do our k-means and scikit-learn's agree? On the real data sets that scikit-learn ships, standardised, in bf16, from the same start.

python -m tools.kmeans_agreement prepare FILE [--only NAME]...   what scikit-learn finds (needs scikit-learn)
python -m tools.kmeans_agreement record OUT SPEED                 the answers into corpus/results/agreement/kmeans.json
python -m tools.kmeans_agreement run FILE OUT                     what `cake_mcp.kmeans` finds on this GPU (needs torch), and the difference

Both get the same rounded numbers. scikit-learn keeps its centroids in float64, ours are rounded to bf16 after every update, so a point
that lies between two centroids may fall to either side: `run` counts such points and says how far from a tie each is, in our own
float64 distances to both sets of centroids.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
CASES = {"iris": (3, 8), "wine": (3, 8), "breast_cancer": (2, 8), "digits": (10, 20)}
"""Numbers of clusters by data set: its classes, and more of them."""
MAX_ITER = 300


def pack(a: np.ndarray) -> dict[str, Any]:
    """An array as JSON: type, shape, base64 of its bytes."""
    return {
        "dtype": a.dtype.name,
        "shape": list(a.shape),
        "data": base64.b64encode(np.ascontiguousarray(a).tobytes()).decode(),
    }


def unpack(obj: dict[str, Any]) -> np.ndarray:
    """The array of `pack`."""
    dtype = BF16 if obj["dtype"] == "bfloat16" else np.dtype(obj["dtype"])
    return np.frombuffer(base64.b64decode(obj["data"]), dtype).reshape(obj["shape"])


def prepare(path: Path, only: list[str]) -> int:
    """Write the points, the starts and scikit-learn's clusterings."""
    sklearn, datasets, cluster = (
        importlib.import_module(name) for name in ("sklearn", "sklearn.datasets", "sklearn.cluster")
    )
    out = []
    for name, counts in CASES.items():
        if only and name not in only:
            continue
        raw = getattr(datasets, f"load_{name}")().data
        spread = raw.std(0)
        x = ((raw - raw.mean(0)) / np.where(spread > 0, spread, 1.0)).astype(BF16)
        for k in counts:
            start = x[np.random.RandomState(k).choice(len(x), k, replace=False)]
            wide, begin = x.astype(np.float64), start.astype(np.float64)
            found = cluster.KMeans(k, init=begin, n_init=1, max_iter=MAX_ITER, tol=0.0, algorithm="lloyd").fit(wide)
            out.append({
                "name": name, "k": k, "x": pack(x), "start": pack(start), "labels": pack(found.labels_.astype(np.int32)),
                "centroids": pack(found.cluster_centers_), "inertia": float(found.inertia_), "n_iter": int(found.n_iter_),
            })  # fmt: skip
            print(name, x.shape, k, found.n_iter_, found.inertia_)
    path.write_text(json.dumps({"sklearn": sklearn.__version__, "cases": out}) + "\n")
    return 0


def compare(case: dict[str, Any], labels: np.ndarray, centroids: np.ndarray) -> dict[str, Any]:
    """How our labels differ from scikit-learn's, and how near to a tie the points that do are.

    A margin is |d1 - d2| / max(d1, d2), where d1 and d2 are a point's distances from the centroids of the two labels that it got.
    """
    x, theirs = unpack(case["x"]).astype(np.float64), unpack(case["labels"])
    own, their_c = centroids.astype(np.float64), unpack(case["centroids"])
    differ = np.flatnonzero(labels != theirs)

    def margins(c: np.ndarray) -> np.ndarray:
        one = np.linalg.norm(x[differ] - c[labels[differ]], axis=1)
        two = np.linalg.norm(x[differ] - c[theirs[differ]], axis=1)
        return np.abs(one - two) / np.maximum(np.maximum(one, two), 1e-30)

    nearest = ((x[:, None] - own) ** 2).sum(-1)
    best = nearest.min(1)
    mine = nearest[np.arange(len(x)), labels]
    return {
        "name": case["name"], "k": case["k"], "points": len(x), "differ": len(differ), "margin_ours": _most(margins(own)),
        "margin_theirs": _most(margins(their_c)), "not_nearest": int((mine > best * (1 + 2.0**-12)).sum()), "inertia": float(mine.sum()),
        "inertia_sklearn": case["inertia"], "centroid_gap": float(np.abs(own - their_c).max()),
    }  # fmt: skip


def _most(a: np.ndarray) -> float:
    return float(a.max()) if a.size else 0.0


def run(path: Path, out: Path) -> int:
    """Cluster every case on the GPU and compare; also from scikit-learn's own centroids, where one assignment must give its labels."""
    import torch

    from cake_mcp import kmeans

    obj = json.loads(path.read_text())
    rows = []
    for case in obj["cases"]:
        bits = torch.from_numpy(unpack(case["x"]).view(np.int16).copy()).view(torch.bfloat16).cuda()
        start = torch.from_numpy(unpack(case["start"]).view(np.int16).copy()).view(torch.bfloat16).cuda()
        found = kmeans(bits, init=start, max_iter=MAX_ITER, tol=0.0)
        row = compare(case, found.labels.cpu().numpy(), found.centroids.float().cpu().numpy())
        row |= {"n_iter": found.n_iter, "n_iter_sklearn": case["n_iter"], "inertia_kernel": float(found.inertia)}
        rows.append(row)
        print(json.dumps(row))
    device = torch.cuda.get_device_name(0)
    out.write_text(json.dumps({"sklearn": obj["sklearn"], "device": device, "rows": rows}, indent=1) + "\n")
    return 0


def record(out: Path, speed: Path) -> int:
    """Keep the answers, with the kernels that the route tables chose and the machine of `speed`: a file of corpus/results/speed/
    that was measured in the same session (device, driver, compiler, commit, date)."""
    from corpus import files
    from corpus.routes import choose, load

    answers, session = json.loads(out.read_text()), json.loads(speed.read_text())
    if answers["device"] != session["device"]:
        raise SystemExit(f"{out} is of a {answers['device']}, {speed} of a {session['device']}")
    table = load("kmeans_assign", "sm_90a")
    sizes = {"iris": (150, 4), "wine": (178, 13), "breast_cancer": (569, 30), "digits": (1797, 64)}
    for row in answers["rows"]:
        points, features = sizes[row["name"]]
        dims = {"B": 1, "N": points, "C": row["k"], "D": features + -features % 8}
        variant = choose(table, dims, "bf16").variant
        row["assign"] = {"variant": variant.id, "content_id": variant.content_id, "cubin_keys": list(variant.cubin_keys)}
    kept = {k: session[k] for k in ("device", "driver", "compiler", "commit", "date")}
    kept |= {"command": "python -m tools.kmeans_agreement prepare FILE; python -m tools.kmeans_agreement run FILE OUT"}
    body = json.dumps(kept | {"sklearn": answers["sklearn"], "rows": answers["rows"]}, indent=1) + "\n"
    files.replace(Path(__file__).parents[1] / "corpus" / "results" / "agreement" / "kmeans.json", body.encode())
    return 0


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    p = argparse.ArgumentParser(prog="tools.kmeans_agreement")
    p.add_argument("step", choices=("prepare", "run", "record"))
    p.add_argument("file", type=Path)
    p.add_argument("out", type=Path, nargs="?")
    p.add_argument("--only", action="append", default=[])
    a = p.parse_args(argv)
    if a.step == "prepare":
        return prepare(a.file, a.only)
    if a.out is None:
        p.error("a second file is missing")
    return run(a.file, a.out) if a.step == "run" else record(a.file, a.out)


if __name__ == "__main__":
    sys.exit(main())
