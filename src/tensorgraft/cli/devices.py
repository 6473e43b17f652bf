"""The devices of one backend, asked in a process of its own: what `tensorgraft doctor --devices` starts.

`python -m tensorgraft.cli.devices MODULE:CLASS` writes a JSON list of names, one for each device.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    module, _, attribute = sys.argv[1].partition(":")
    backend = getattr(importlib.import_module(module), attribute)
    print(json.dumps([backend(i).device_name() for i in range(backend.device_count())]))


if __name__ == "__main__":
    main()
