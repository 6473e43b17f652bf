"""Handles of collectives: of gloo's, on copies, and of those that the devices compute."""

from __future__ import annotations

import contextlib
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import TensorWeakRef

# C++ calls a work's Python object without a reference to it. A program that keeps a work has the object itself;
# works of functional collectives are referenced by C++ only, until they are waited for.
_works: deque[dist.Work] = deque(maxlen=1 << 12)
_pending: set[TransferredWork] = set()
_MANY = 256


class TransferredWork(dist.Work):
    """The handle of a collective on copies: its results are written to the tensors when it is waited for."""

    def __init__(
        self,
        inner: dist.Work,
        copies: list[tuple[torch.Tensor, torch.Tensor]],
        result: list[torch.Tensor],
        divisor: int = 1,
    ):
        super().__init__()
        self._inner: dist.Work | None = inner
        self._copies, self._divisor = copies, divisor
        self._result: list[Any] = result
        self._source: int | None = None
        if len(_pending) > _MANY:  # of sent messages that are never waited for
            _pending.difference_update([w for w in _pending if not w._copies and w.is_completed()])
        _pending.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the collective. Raises the errors of gloo: another process has ended, or the time is over."""
        if self._inner is not None:
            is_completed = self._inner.wait() if timeout is None or not timeout else self._inner.wait(timeout)
            with torch.no_grad():
                for tensor, copy in self._copies:
                    if self._divisor > 1:
                        copy.div_(self._divisor, rounding_mode="trunc")
                    tensor.copy_(copy)
            with contextlib.suppress(RuntimeError):  # raises for other works than messages
                self._source = self._inner._source_rank()
            # `_works` keeps the object, which is not to keep tensors
            self._inner, self._copies, self._result = None, [], [*map(TensorWeakRef, self._result)]
            _pending.discard(self)
            _works.append(self)
            return is_completed
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._inner is None or self._inner.is_completed()

    def is_success(self) -> bool:
        return self._inner is None or self._inner.is_success()

    def exception(self) -> Any:
        return None if self._inner is None else self._inner.exception()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        if self._inner is not None:
            return self._inner._source_rank()
        if self._source is None:
            raise RuntimeError("source_rank is available only for the work of a receive")
        return self._source

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that were written, if they still have other references."""
        self.wait()
        return _alive(self._result)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a completed future of the tensors: C++ (the reducer of `DistributedDataParallel`) waits for it without
        calling `wait`."""
        tensors = self.result() if self._inner is None else list(self._result)
        self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(tensors)
        return future


def _alive(refs: list[Any]) -> list[torch.Tensor]:
    return [t for ref in refs if (t := ref()) is not None]


class ComputedWork(dist.Work):
    """The handle of a collective that the device computes, in order with its other operations."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = [*map(TensorWeakRef, result)]
        _works.append(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Nothing has to be waited for: who reads the result does."""
        return True

    def synchronize(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Any:
        return None

    def result(self) -> list[torch.Tensor]:
        return _alive(self._result)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self.result())
        return future
