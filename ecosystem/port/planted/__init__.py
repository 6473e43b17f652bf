"""Differences planted in six networks: each program of the second framework has one, and a line that it is in.

The equal ones are the same networks without, and with lines that compute the same in another way.
"""

from __future__ import annotations

from ecosystem.port.planted import convolutional, decoder, encoder, patches, recurrent, relative
from ecosystem.port.planted.network import Network as Network

NETWORKS = [module.NETWORK for module in (encoder, decoder, convolutional, recurrent, patches, relative)]
EQUAL = "equal: "


def planted() -> list[tuple[Network, str, str]]:
    """Return network, change and reason of each that differs."""
    return [(network, change, reason) for network in NETWORKS for change, reason in network.changes.items()]


def unplanted() -> list[tuple[Network, str]]:
    """Return network and change, "" for none, of each that is equal."""
    return [(network, change) for network in NETWORKS for change in ("", *network.equal)]
