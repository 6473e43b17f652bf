"""`tensorgraft run --processes N`: the program in several processes on this machine, by PyTorch's own launcher; or as
one of several on several machines."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence


def join(coordinator: str | None, process_id: int | None, count: int) -> str | None:
    """Make this process one of `count`, by the environment variables of `torchrun`; returns an error message for wrong
    options."""
    host, _, port = (coordinator or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        return f"--coordinator is {coordinator!r}: HOST:PORT of the machine of process 0, the same for all processes"
    if process_id is None or not process_id < count:
        return f"--process-id is {process_id}, --processes {count}: processes have the numbers 0 to {max(count - 1, 0)}"
    address = host.removeprefix("[").removesuffix("]")
    os.environ |= {"RANK": str(process_id), "WORLD_SIZE": str(count), "MASTER_ADDR": address, "MASTER_PORT": port}
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return None


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
            return code if code > 0 else 128 - code  # the exit status of a shell for a signal
    return 0
