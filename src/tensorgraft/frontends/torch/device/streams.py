"""Streams: a backend runs operations in order, so there is one stream (its class is in `torch_entry.classes`)."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch.dispatch.transfer import direct


class StreamContext:
    """`with torch.cuda.stream(s):`. There is one stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


@direct("record_stream")
def record_stream(x: torch.Tensor, stream: Any) -> None:
    """Do nothing: the backend keeps memory that it still reads."""
