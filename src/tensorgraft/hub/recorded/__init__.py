"""Backends that record: arrays are nodes of a graph, which is compiled and run when asked (lazy mode), or variables of
a program, which is data: it can be run on any backend, printed and saved."""

from tensorgraft.hub.recorded.backend import RecordedBackend
from tensorgraft.hub.recorded.graph import Figures, Node
from tensorgraft.hub.recorded.program import Program
from tensorgraft.hub.recorded.tracing import record

__all__ = ["Figures", "Node", "Program", "RecordedBackend", "record"]
