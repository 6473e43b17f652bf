import os
import sys

from benchmarks import platforms

# as the tests have it (tests/conftest.py): JAX on the CPU, and no time spent on optimising what runs once
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TENSORGRAFT_TORCH_COMPILER", "none")
os.environ.setdefault("TENSORGRAFT_CACHE", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + platforms.quick_flags()

from tests.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
