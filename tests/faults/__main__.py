"""`python -m tests.faults`: exceptions at the n-th thing that a backend does."""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TENSORGRAFT_TORCH_COMPILER", "none")
os.environ.setdefault("TENSORGRAFT_CACHE", "0")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=40, help="places of each kind in each scenario on each backend")
    parser.add_argument("--backends", default="numpy,jax,torch,tensorflow")
    parser.add_argument("--scenarios", default="", help="those whose name has this in it")
    parser.add_argument("--kinds", default="", help="those whose name has this in it")
    options = parser.parse_args()
    import tests.faults.other_scenarios  # noqa: F401  (which adds to SCENARIOS)
    from tests.faults.campaign import campaign
    from tests.faults.injection import KINDS, installed
    from tests.faults.scenarios import SCENARIOS

    backends = tuple(options.backends.split(","))
    chosen = [s for s in SCENARIOS if options.scenarios in s.name]
    start = time.process_time()
    with installed(backends) as injector:
        table = campaign(injector, backends, options.most, chosen, KINDS, progress=True)
    faults = sum(cell.injected for cell in table.values())
    wrong = sum(len(cell.wrong) for cell in table.values())
    print(f"{faults} faults, {wrong} wrong, {time.process_time() - start:.0f} s of CPU")
    return bool(wrong)


raise SystemExit(main())
