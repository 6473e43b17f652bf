"""How many JAX programs `tg.source` writes down, and how good the files are: `python -m
tests.conformance.source_jax_programs`.

The programs are those of a folder that is not part of this repository (`--harness`, in it `jax_programs/`: traceax,
lineax, optax, Equinox and jax itself, with derivatives) and the models below, of Equinox, Flax (linen and nnx) and
Haiku. Rows go to `out/conformance/source-jax-programs-TARGET.jsonl`
(what has a row is not run again, but with `--fresh`), files beside them, and counts to
`runs/source_jax_programs.json`, of which `python -m tests.conformance.page` makes a part of docs/conformance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "out" / "conformance"
KEPT = Path(__file__).parent / "runs" / "source_jax_programs.json"
TARGETS = ("torch", "numpy", "tensorflow", "jax")
LIMIT = 300  # seconds of a case
Case = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", type=Path, default=ROOT.parent / "shared" / "conformance")
    parser.add_argument("--onto", nargs="+", choices=TARGETS, default=["torch"])
    parser.add_argument("--match", default="", help="a regular expression for names of cases")
    parser.add_argument("--fresh", action="store_true", help="also what has a row")
    parser.add_argument("--failed", action="store_true", help="what has a row that says it failed")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    cases = all_cases(args.harness / "jax_programs")
    for onto in args.onto:
        path = RESULTS / f"source-jax-programs-{onto}.jsonl"
        rows = read(path)
        for name, case in cases.items():
            skipped = name in rows and not args.fresh and not (args.failed and not passed(rows[name]))
            if skipped or not re.search(args.match, name):
                continue
            row = rows[name] = run(name, case, onto, path.with_suffix(""))
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print("ok  " if passed(row) else "FAIL", name, row.get("cpu", "-"), "s", row["reason"][:300], flush=True)
        keep(onto, {n: row for n, row in rows.items() if n in cases}, len(cases))
        print(f"{onto}: {sum(map(passed, rows.values()))} of {len(cases)}", flush=True)
    return 0


def passed(row: dict[str, Any]) -> bool:
    return bool(row["converted"]) and not row["reason"]


def read(path: Path) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {row["case"]: row for row in rows}  # the last one counts


def keep(onto: str, rows: dict[str, dict[str, Any]], there: int) -> None:
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    failed = {n: row["reason"][:200] for n, row in rows.items() if not passed(row)}
    known[onto] = {
        "there": there,
        "ran": len(rows),
        "converted": sum(bool(row["converted"]) for row in rows.values()),
        "passed": sum(map(passed, rows.values())),
        "sizes": sum(bool(row.get("sizes")) for row in rows.values()),
        "failed": failed,
    }
    KEPT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def page() -> str:
    """The part of docs/conformance.md."""
    if not KEPT.exists():
        return ""
    lines = [
        "", "## JAX programs as source", "",
        "Programs of traceax, lineax, optax, Equinox and jax, with derivatives, and models of Equinox, Flax and Haiku"
        " (`tests/conformance/source_jax_programs.py`), converted by `tg.source`. A file passes when its results are"
        " within 1e-5 of the program's, and its gradients within 1e-4, at all sizes at which it was checked.", "",
        "| onto | run | of | converted | passed |", "| --- " * 5 + "|",
    ]  # fmt: skip
    known = json.loads(KEPT.read_text())
    for onto, row in known.items():
        lines.append(f"| {onto} | {row['ran']} | {row['there']} | {row['converted']} | {row['passed']} |")
    for onto, row in known.items():
        lines += ["", *(f"- {name}, onto {onto}: {why}" for name, why in row["failed"].items())]
    return "\n".join(lines) + "\n"


def run(name: str, case: Case, onto: str, folder: Path) -> dict[str, Any]:
    """The row of a case. (JAX has threads: no process is forked from it.)"""
    folder.mkdir(parents=True, exist_ok=True)

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    began = time.process_time()
    try:
        row = converted(case, onto, folder / re.sub(r"\W+", "_", name))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return {"case": name, **row, "cpu": round(time.process_time() - began, 1)}


def converted(case: Case, onto: str, stem: Path) -> dict[str, Any]:
    import tensorgraft as tg

    warnings.filterwarnings("ignore")
    try:
        fn, args, kwargs = case()
        made = tg.source(fn, *args, onto=onto, **kwargs)
    except Exception as error:  # whatever it is, it is a row
        where = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-3:]
        first, _, rest = str(error).strip().partition("\n")
        said = f"{first} ... {rest.splitlines()[-1]}" if "does not run" in first and rest else first
        return {"converted": False, "reason": f"{type(error).__name__}: {said}", "where": where}
    stem.with_suffix(".py").write_text(made.text)
    wrong = [row for row in made.report.rows if not row.ok]
    return {
        "converted": True,
        "reason": "; ".join(f"{row.what} {row.sizes}: {row.error:.1e} {row.detail}" for row in wrong),
        "lines": made.report.lines,
        "sizes": [g.title for g in made.report.groups if g.checked_sizes],
        "notes": made.report.notes,
    }


# ---- cases -----------------------------------------------------------------------------------------------------------


def all_cases(harness: Path) -> dict[str, Case]:
    cases: dict[str, Case] = dict(models())
    if harness.is_dir():
        sys.path.insert(0, str(harness))
        import models as of_equinox  # type: ignore[import-not-found]
        import programs  # type: ignore[import-not-found]

        for name, fn, args in programs.PROGRAMS:
            cases[name] = lambda fn=fn, args=args: (fn, args, {})  # type: ignore[misc]
        for name, what, fn, args in of_equinox.cases():
            cases[f"models {name} {what}"] = lambda fn=fn, args=args: (fn, args, {})  # type: ignore[misc]
    return cases


def models() -> Iterator[tuple[str, Case]]:
    """Models of the libraries, with what people put into them."""
    for fn in (eqx_mlp, eqx_cnn, eqx_attention, eqx_lstm, eqx_bn, linen_mlp, linen_cnn, linen_lstm, linen_attention,
               nnx_mlp, nnx_cnn, nnx_bn, haiku_mlp, haiku_cnn, haiku_resnet, plain_gpt):  # fmt: skip
        yield fn.__name__, fn


def _numbers(*shape: int, seed: int = 0) -> Any:
    import jax

    return jax.random.normal(jax.random.key(seed), shape)


def eqx_mlp() -> Any:
    import equinox as eqx
    import jax

    model = eqx.nn.MLP(6, 3, 16, 2, key=jax.random.key(0))
    return jax.vmap(model), (_numbers(4, 6),), {}


def eqx_cnn() -> Any:
    import equinox as eqx
    import jax

    a, b, c = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.Sequential([
        eqx.nn.Conv2d(3, 8, 3, padding=1, key=a), eqx.nn.GroupNorm(2, 8), eqx.nn.Lambda(jax.nn.relu),
        eqx.nn.MaxPool2d(2, 2), eqx.nn.Conv2d(8, 4, 3, stride=2, key=b), eqx.nn.Lambda(jax.numpy.ravel),
        eqx.nn.Linear(36, 5, key=c),
    ])  # fmt: skip
    return jax.vmap(model), (_numbers(2, 3, 16, 16),), {}


def eqx_attention() -> Any:
    import equinox as eqx
    import jax

    model = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))

    def attend(model: Any, x: Any) -> Any:
        mask = jax.numpy.tril(jax.numpy.ones((x.shape[0],) * 2, bool))
        return model(x, x, x, mask=mask)

    return attend, (model, _numbers(5, 8)), {}


def eqx_lstm() -> Any:
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    cell = eqx.nn.LSTMCell(4, 6, key=jax.random.key(0))

    def run(model: Any, xs: Any) -> Any:
        zero = jnp.zeros(6)
        return jax.lax.scan(lambda s, x: ((new := model(x, s)), new[0]), (zero, zero), xs)

    return run, (cell, _numbers(7, 4)), {}


def eqx_bn() -> Any:
    import equinox as eqx
    import jax

    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(6, "batch", mode="batch")

    def run(model: Any, x: Any) -> Any:
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)[0]

    return run, (model, _numbers(5, 6)), {}


def linen_mlp() -> Any:
    import jax
    from flax import linen

    model = linen.Sequential([linen.Dense(16), linen.gelu, linen.LayerNorm(), linen.Dense(3)])
    x = _numbers(4, 6)
    return model.apply, (model.init(jax.random.key(0), x), x), {}


def linen_cnn() -> Any:
    import jax
    from flax import linen

    model = linen.Sequential([
        linen.Conv(8, (3, 3)), linen.relu, lambda x: linen.max_pool(x, (2, 2), (2, 2)),
        linen.Conv(4, (3, 3), strides=2), linen.GroupNorm(2), lambda x: x.reshape(x.shape[0], -1), linen.Dense(5),
    ])  # fmt: skip
    x = _numbers(2, 12, 12, 3)
    return model.apply, (model.init(jax.random.key(0), x), x), {}


def linen_lstm() -> Any:
    import jax
    from flax import linen

    model = linen.RNN(linen.OptimizedLSTMCell(6))
    x = _numbers(2, 5, 4)
    return model.apply, (model.init(jax.random.key(0), x), x), {}


def linen_attention() -> Any:
    import jax
    from flax import linen

    model = linen.MultiHeadDotProductAttention(2)
    x = _numbers(2, 5, 8)
    return model.apply, (model.init(jax.random.key(0), x), x), {}


def nnx_mlp() -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(6, 16, rngs=rngs), nnx.silu, nnx.Linear(16, 3, rngs=rngs)), (_numbers(4, 6),), {}


def nnx_cnn() -> Any:
    from flax import nnx

    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.relu, nnx.Conv(8, 4, (3, 3), strides=2, rngs=rngs),
        lambda x: x.mean((1, 2)), nnx.Linear(4, 3, rngs=rngs),
    )  # fmt: skip
    return model, (_numbers(2, 12, 12, 3),), {}


def nnx_bn() -> Any:
    from flax import nnx

    return nnx.BatchNorm(6, rngs=nnx.Rngs(0)), (_numbers(5, 6),), {}


def _haiku(net: Callable[[Any], Any], x: Any) -> Any:
    import haiku as hk
    import jax

    model = hk.without_apply_rng(hk.transform(net))
    return model.apply, (model.init(jax.random.key(0), x), x), {}


def haiku_mlp() -> Any:
    import haiku as hk

    return _haiku(lambda x: hk.nets.MLP([16, 16, 3])(x), _numbers(4, 6))


def haiku_cnn() -> Any:
    import haiku as hk
    import jax

    def net(x: Any) -> Any:
        x = jax.nn.relu(hk.Conv2D(8, 3, padding="SAME")(x))
        x = hk.MaxPool(2, 2, "VALID")(x)
        return hk.Linear(5)(hk.Flatten()(hk.Conv2D(4, 3, stride=2)(x)))

    return _haiku(net, _numbers(2, 12, 12, 3))


def haiku_resnet() -> Any:
    import haiku as hk
    import jax

    def net(x: Any) -> Any:
        return hk.nets.ResNet(
            (1, 1, 1, 1),
            5,
            bottleneck=False,
            channels_per_group=(8, 8, 16, 16),
            use_projection=(True, True, True, True),
        )(x, is_training=False, test_local_stats=True)

    model = hk.without_apply_rng(hk.transform_with_state(net))
    x = _numbers(2, 32, 32, 3)
    params, state = model.init(jax.random.key(0), x)
    return (lambda params, x: model.apply(params, state, x)[0]), (params, x), {}


def plain_gpt() -> Any:
    import jax
    import jax.numpy as jnp

    def norm(p: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    def block(p: Any, x: Any) -> Any:
        b, t, w = x.shape
        q, k, v = jnp.split(norm(p["norm1"], x) @ p["qkv"], 3, axis=-1)
        q, k, v = (y.reshape(b, t, 2, w // 2) for y in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (w // 2) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, t, w) @ p["out"]
        return x + jax.nn.gelu(norm(p["norm2"], x) @ p["up"]) @ p["down"]

    def gpt(params: Any, ids: Any) -> Any:
        x = params["wte"][ids] + params["wpe"][: ids.shape[1]]
        for p in params["blocks"]:
            x = block(p, x)
        return norm(params["norm"], x) @ params["wte"].T

    def normal() -> Any:
        return {"scale": jnp.ones(8), "bias": jnp.zeros(8)}

    blocks = [
        {"norm1": normal(), "norm2": normal(), "qkv": _numbers(8, 24, seed=k), "out": _numbers(8, 8, seed=k + 9),
         "up": _numbers(8, 16, seed=k + 18), "down": _numbers(16, 8, seed=k + 27)}
        for k in range(2)
    ]  # fmt: skip
    params = {"wte": _numbers(11, 8), "wpe": _numbers(16, 8, seed=1), "blocks": blocks, "norm": normal()}
    return gpt, (params, jnp.arange(10).reshape(2, 5) % 11), {}


if __name__ == "__main__":
    sys.exit(main())
