"""`python -m tests.faults`: exceptions at the n-th thing that a backend does."""

from __future__ import annotations

import argparse
import os
import time

from benchmarks import platforms

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TENSORGRAFT_TORCH_COMPILER", "none")
os.environ.setdefault("TENSORGRAFT_CACHE", "0")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + platforms.quick_flags() + " --xla_force_host_platform_device_count=2"
)


# of the places of a kind in a scenario: what is compiled takes its time
SHARES = {"numpy": 1.0, "torch": 0.4, "jax": 0.1, "tensorflow": 0.1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=10000, help="how many, at least, over all backends")
    parser.add_argument("--most", type=int, help="places of each kind in each scenario, instead of --faults")
    parser.add_argument("--backends", default="numpy,torch,jax,tensorflow")
    parser.add_argument("--scenarios", default="", help="those whose name has this in it")
    options = parser.parse_args()
    from tests.faults import page
    from tests.faults.campaign import Faults
    from tests.faults.injection import installed
    from tests.faults.other_scenarios import SCENARIOS

    backends = tuple(options.backends.split(","))
    chosen = [s for s in SCENARIOS if options.scenarios in s.name]
    start = time.process_time()
    with installed(backends) as injector:
        faults = Faults(injector, backends, chosen)
        most = dict.fromkeys(backends, options.most) if options.most else faults.most(options.faults, SHARES)
        injected, wrong = 0, 0
        for table in faults.inject(most):
            page.keep(table)
            injected += sum(cell.injected for cell in table.values())
            wrong += sum(len(cell.wrong) for cell in table.values())
    print(f"{injected} faults, {wrong} wrong, {time.process_time() - start:.0f} s of CPU")
    return bool(wrong)


raise SystemExit(main())
