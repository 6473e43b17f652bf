"""Weights of one network in another that somebody else wrote, with the proof that both compute the same.

`tg.port` finds the mapping, `tg.diff` compares two programs that have their weights. A program is a `graph` of
operations, in which `computed` weights are parameters; `matching` finds what corresponds, by `values`, through
`candidates`; `proof` says what of it is shown to be right; `recognition` writes it as `expressions`; `mapping` and
`checkpoints` convert; `reasons` says where two programs differ, and why.
"""
