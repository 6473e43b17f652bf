#!/usr/bin/env bash
# A path that Python 3.13 has pickled cannot be read by Python 3.12 and older, whatever the protocol. Checkpoints of
# torch.distributed.checkpoint have paths in their metadata: saved on 3.13, they cannot be loaded on 3.12.
#
# Versions:  Python 3.13.0 and 3.12.1 (seen with torch 2.15.0 on 3.13; a path that 3.12 has pickled is read by both)
# Expected:  PosixPath('x'): pathlib.PosixPath is the public name of the class in both
# Seen:      ModuleNotFoundError: No module named 'pathlib._local': 3.13 writes the module where the class is defined
#
# Exits with 0 as long as that is so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
new="${PYTHON:-python3.13}" old="${OLDER:-python3.12}"

cd "$folder"
for python in "$new" "$old"; do
  "$python" -c 'import pathlib, pickle; open("path.pkl", "wb").write(pickle.dumps(pathlib.Path("x"), protocol=2))'
  for reader in "$new" "$old"; do
    echo "$("$python" --version) writes, $("$reader" --version) reads:" \
      "$("$reader" -c 'import pickle; print(repr(pickle.load(open("path.pkl", "rb"))))' 2>&1 | tail -n 1)"
  done
done | tee seen
grep -q "^Python 3\.13.* writes, $("$old" --version) reads: ModuleNotFoundError: .*pathlib\._local" seen
