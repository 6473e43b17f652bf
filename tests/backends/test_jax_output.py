"""What comes out of a process while its devices are connected."""

import os

from tensorgraft.backends.jax.sharding.gloo_output import without_connections

LINE = b"0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"


def test_lines_on_connections_do_not_come_out(capfd):
    with without_connections():
        os.write(1, b"[Gloo] Rank " + LINE + b"before\n")
        os.write(1, b"[Gloo] Rank [Gloo] Rank " + LINE + b"\nafter\n\n")  # of two threads, one in the other
    assert capfd.readouterr().out == "before\nafter\n\n"
