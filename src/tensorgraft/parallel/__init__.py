"""Programs over many devices: a mesh, placements by names of its axes, and plans for the weights of a model.

The program sees whole tensors; XLA's partitioner (GSPMD) makes the pieces meet. See docs/parallel.md.
"""

from tensorgraft.hub.placement import Mesh, Placement
from tensorgraft.parallel.automatic import Choice, auto
from tensorgraft.parallel.experts import expert_parallel
from tensorgraft.parallel.figures import Exchange
from tensorgraft.parallel.limits import memory_limit
from tensorgraft.parallel.meshes import Replicate, Shard, mesh
from tensorgraft.parallel.models import shard_
from tensorgraft.parallel.picture import visualize
from tensorgraft.parallel.placing import (
    batch_part,
    bytes_by_device,
    constrain,
    placement,
    process_count,
    process_index,
    replicate,
    shard,
    shard_batch,
)
from tensorgraft.parallel.planning import Forecast, plan
from tensorgraft.parallel.plans import Output, data_parallel, fully_sharded, sequence_parallel, tensor_parallel

__all__ = [
    "Choice",
    "Exchange",
    "Forecast",
    "Mesh",
    "Output",
    "Placement",
    "Replicate",
    "Shard",
    "auto",
    "batch_part",
    "bytes_by_device",
    "constrain",
    "data_parallel",
    "expert_parallel",
    "fully_sharded",
    "memory_limit",
    "mesh",
    "placement",
    "plan",
    "process_count",
    "process_index",
    "replicate",
    "sequence_parallel",
    "shard",
    "shard_",
    "shard_batch",
    "tensor_parallel",
    "visualize",
]
