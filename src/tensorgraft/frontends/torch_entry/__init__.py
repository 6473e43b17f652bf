"""The part of the PyTorch front end that `import torch` loads (entry point group `torch.backends`): the device's name,
and functions that load the rest when a program first uses the device.

Loading takes some hundred milliseconds, and most programs on a machine where tensorgraft is installed never ask for it.
PyTorch itself says where its Python meets a device for the first time: it calls `_lazy_init` of the device module. What
comes by other ways is waited for: attributes of the device module (`device`), operators that C++ calls (`fallback`),
functions that take a device without telling C++ (`late_loading`) and PyTorch's classes that we derive from (`classes`).

This package imports PyTorch and of ours `warning_filters`, `importing`, `hub.foreign` and `hub.processes`;
`frontends.torch` is loaded whenever anything in it is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

from tensorgraft import warning_filters
from tensorgraft.errors import MissingNameError

FRONT_END = "tensorgraft.frontends.torch"
COMMAND = "tensorgraft.cli.run"


def autoload() -> None:
    """Register the device; PyTorch calls this when it is imported, so that `device="graft"` works in any script, unless
    another package that gives PyTorch a device is installed."""
    on = os.environ.get("TENSORGRAFT_RUN")  # a program under `tensorgraft run` has started this process
    try:
        from tensorgraft.frontends.torch_entry import extensions, hooks, loading

        loading.set_front_end(FRONT_END)
        if extensions.may_register(wanted=on is not None):
            hooks.register()
    except Exception as error:  # any error: a program that does not use tensorgraft must run
        _disable(error)
        return
    if on is not None:
        extensions.require_free()
        importlib.import_module(COMMAND).take_over(on)


def _disable(error: Exception) -> None:
    """PyTorch as it is without us, and why it is."""
    patches = sys.modules.get(f"{__name__}.patches")
    if patches is not None:
        patches.undo("import")
    if isinstance(error, MissingNameError):  # this error was reported already
        return
    warning_filters.show_warning(
        f"tensorgraft could not give PyTorch its device, and does nothing: {type(error).__name__}: {error}."
        "\nTORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from trying."
    )
