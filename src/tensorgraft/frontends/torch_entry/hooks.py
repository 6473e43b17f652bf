"""All that waits for the first touch of the device."""

from __future__ import annotations

import functools

from tensorgraft.frontends.torch_entry import extensions, fallback, loading, patches, rendezvous
from tensorgraft.hub import foreign, processes


@functools.cache
def register() -> None:
    """Give PyTorch the device, which loads the front end when it is used. Does nothing the second time. Raises a
    RuntimeError where another package has given it one."""
    extensions.require_free()
    patches.apply("import")
    fallback.install()
    foreign.reads(loading.TYPE, lambda device: loading.part("core.devices").slot_of(device).name)
    processes.meet = rendezvous.coordinator
