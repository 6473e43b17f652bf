"""`tensorgraft run --processes N`: the program in several processes on this machine, by PyTorch's own launcher."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `tensorgraft run *arguments` in `count` processes, as `torchrun` does; returns the exit code.

    What the first process prints is shown; so are the errors of all, those of the others with their number. When one
    process fails, or is killed, the others are ended. Raises nothing: the launcher says which process failed.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    others = range(1, count)
    with tempfile.TemporaryDirectory(prefix="tensorgraft-run-") as logs:
        options = ["--standalone", "--nproc-per-node", str(count), "--log-dir", logs]
        if others:
            options += ["--redirects", ",".join(f"{i}:1" for i in others), "--tee", ",".join(f"{i}:2" for i in others)]
        try:
            run.main([*options, "--no-python", sys.executable, "-m", "tensorgraft", "run", *arguments])
        except ChildFailedError as error:
            print(error, file=sys.stderr)
            code = next(iter(error.failures.values())).exitcode
            return code if code > 0 else 128 - code  # of a signal as a shell says it
    return 0
