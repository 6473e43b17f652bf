"""Run ONNX's backend tests, and print how many pass, and why the others do not."""

from __future__ import annotations

import argparse
import collections
import time

from ecosystem.onnx.reasons import reason
from ecosystem.onnx.runner import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="*", default=["numpy", "jax", "torch", "tensorflow"])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--errors", action="store_true", help="print the error of each test that fails")
    args = parser.parse_args()
    for on in args.on:
        start = time.process_time()
        result = run(on, args.only)
        passed, total = len(result.passed), len(result.passed) + len(result.errors_of)
        seconds = time.process_time() - start
        print(f"{on}: {passed} of {total} ({100 * passed / max(total, 1):.1f} %), {seconds:.0f} CPU s")
        reasons = collections.Counter(reason(name, on) or "NO REASON" for name in result.errors_of)
        for text, n in reasons.most_common():
            print(f"  {n:3} {text}")
        for name, error in sorted(result.errors_of.items()):
            if args.errors or reason(name, on) is None:
                print(f"  {name}: {error}")


main()
