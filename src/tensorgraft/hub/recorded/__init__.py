"""A backend that records: its arrays are nodes of a graph, which another backend compiles and runs when asked."""

from tensorgraft.hub.recorded.backend import RecordedBackend
from tensorgraft.hub.recorded.graph import Figures, Node

__all__ = ["Figures", "Node", "RecordedBackend"]
