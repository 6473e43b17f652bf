"""Test bench of `tg.port` and `tg.diff`: pairs of networks that other people wrote, and planted differences.

`python -m ecosystem.port` runs all of it and writes `docs/port_pairs.md`.
"""
