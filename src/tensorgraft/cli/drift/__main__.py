"""`python -m tensorgraft.cli.drift` writes the snapshot; with the name of a framework it prints that framework's
part."""

from __future__ import annotations

import json
import sys

from tensorgraft.cli.drift import SNAPSHOT, collected, write_snapshot

if len(sys.argv) > 1:
    print(json.dumps(collected(sys.argv[1])))
else:
    for name, row in write_snapshot().items():
        print(name, row["version"], {kind: len(names) for kind, names in row["kinds"].items()})
    print(f"written: {SNAPSHOT}")
