"""What `test_distributed.py` runs in each of several processes: PyTorch's distributed interface on a device, beside the
same on the CPU in the same process group. Arguments: the backend, a folder; the result of rank 0 is in result.json."""

import gc
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tensorgraft as tg

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.bool, torch.complex64]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


# ---- collectives: functions of a way to make tensors, which return the tensors that they wrote ----------------------


def all_reduce(make: Any, op: Any, group: Any) -> Any:
    x = make(3, 2)
    dist.all_reduce(x, op, group)
    return x


def all_reduce_view(make: Any, op: Any, group: Any) -> Any:
    base = make(4, 6)
    work = dist.all_reduce(base[1:3], op, group, async_op=True)
    work.wait()
    return base


def reduce(make: Any, op: Any, group: Any) -> Any:
    x = make(3)
    dist.reduce(x, group=group, group_dst=0, op=op)
    return x if dist.get_rank(group) == 0 else None


def reduce_scatter(make: Any, op: Any, group: Any) -> Any:
    out = make(2)
    dist.reduce_scatter(out, [make(2, seed=i) for i in range(dist.get_world_size(group))], op, group)
    return out


def reduce_scatter_tensor(make: Any, op: Any, group: Any) -> Any:
    out = make(2)
    dist.reduce_scatter_tensor(out, make(2 * dist.get_world_size(group)), op, group)
    return out


REDUCTIONS = [all_reduce, all_reduce_view, reduce, reduce_scatter, reduce_scatter_tensor]


def broadcast(make: Any, group: Any) -> Any:
    x = make(3)
    dist.broadcast(x, group=group, group_src=1)
    return x


def all_gather(make: Any, group: Any) -> Any:
    outs = [make(2, 2) for _ in range(dist.get_world_size(group))]
    dist.all_gather(outs, make(2, 2, seed=1), group)
    return outs


def all_gather_into_tensor(make: Any, group: Any) -> Any:
    out = make(2 * dist.get_world_size(group), 3)
    dist.all_gather_into_tensor(out, make(2, 3, seed=1), group)
    return out


def all_gather_in_place(make: Any, group: Any) -> Any:
    out = make(2 * dist.get_world_size(group), 3)
    rank = dist.get_rank(group)
    dist.all_gather_into_tensor(out, out[2 * rank : 2 * rank + 2], group)
    return out


def gather(make: Any, group: Any) -> Any:
    first = dist.get_rank(group) == 0
    outs = [make(2) for _ in range(dist.get_world_size(group))] if first else None
    dist.gather(make(2, seed=1), outs, group=group, group_dst=0)
    return outs


def scatter(make: Any, group: Any) -> Any:
    first = dist.get_rank(group) == 0
    out = make(2)
    dist.scatter(
        out, [make(2, seed=i) for i in range(dist.get_world_size(group))] if first else None, group=group, group_src=0
    )
    return out


def all_to_all(make: Any, group: Any) -> Any:
    n = dist.get_world_size(group)
    outs = [make(2) for _ in range(n)]
    dist.all_to_all(outs, [make(2, seed=i) for i in range(n)], group)
    return outs


def all_to_all_single(make: Any, group: Any) -> Any:
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    out = make(n * (rank + 1))
    dist.all_to_all_single(out, make(sum(range(1, n + 1))), [rank + 1] * n, list(range(1, n + 1)), group)
    return out


def exchange(make: Any, group: Any) -> Any:
    """Everybody receives before it sends: handles have to be lazy."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    out = make(2)
    received = dist.irecv(out, group=group, group_src=(rank - 1) % n)
    sent = dist.isend(make(2, seed=1), group=group, group_dst=(rank + 1) % n)
    received.wait()
    sent.wait()
    return out


MOVES = [
    broadcast,
    all_gather,
    all_gather_into_tensor,
    all_gather_in_place,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    exchange,
]


def cases(every: bool) -> Any:
    """(a collective, its operation, dtypes); the table is long, since each is a program to be compiled."""
    for f, op in itertools.product(REDUCTIONS, OPS):
        if every or f is all_reduce:
            yield f, (getattr(dist.ReduceOp, op),), op, DTYPES
        elif op in ("SUM", "MAX"):
            yield f, (getattr(dist.ReduceOp, op),), op, DTYPES[:1]
    for f in MOVES:
        yield f, (), "", DTYPES if every else [torch.float32, torch.complex64]


def same_collectives(device: torch.device, group: Any, joined: bool, every: bool) -> dict[str, str]:
    """What differs from the CPU, by name of the case."""
    different = {}
    cpu = torch.device("cpu")
    for fn, rest, op, dtypes in cases(every):
        for dtype in dtypes:
            if op == "AVG" and dtype in (torch.int64, torch.int16):  # see `as_nccl_does`
                continue
            expected = _outcome(fn, cpu, dtype, rest, group)
            if joined and expected == "RuntimeError" and dtype == torch.int16:  # which gloo has not, and XLA has
                expected = _outcome(fn, cpu, torch.int64, rest, group)
                if isinstance(expected, list):
                    expected = [(str(dtype), values) for _, values in expected]
            if joined and fn is gather and dtype == torch.complex64:  # nor these, there
                expected = _outcome(all_gather, cpu, dtype, rest, group)[: 0 if dist.get_rank(group) else None]
                expected = [(d, values[0]) for d, values in expected]
            outcome = _outcome(fn, device, dtype, rest, group)
            if not same(outcome, expected):
                different[f"{fn.__name__} {op} {dtype}"] = f"{expected} {outcome}"
    return different


def same(a: Any, b: Any) -> bool:
    """Equal, but for the last bit of an average, which is gloo's own way."""
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    return [d for d, _ in a] == [d for d, _ in b] and all(
        np.allclose(x, y, 3e-7) for (_, x), (_, y) in zip(a, b, strict=True)
    )


def _outcome(fn: Any, device: torch.device, dtype: torch.dtype, rest: Any, group: Any) -> Any:
    def make(*shape: int, seed: int = 0) -> torch.Tensor:
        return numbers(*shape, dtype=dtype, seed=seed).to(device)

    try:
        out = fn(make, *rest, group)
    except (RuntimeError, ValueError) as error:
        return type(error).__name__
    tensors = out if isinstance(out, list) else [] if out is None else [out]
    assert all(t.device == device for t in tensors)
    return [(str(t.dtype), t.tolist()) for t in tensors]


# ---- what is built on them -------------------------------------------------------------------------------------------


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2)
    )


def batches(device: torch.device, split: bool = True) -> Any:
    for i in range(3):
        torch.manual_seed(10 * i + (dist.get_rank() if split else 0))
        yield torch.randn(6, 4).to(device)


def trained(module: nn.Module, device: torch.device, split: bool = True) -> list[float]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, foreach=split)
    losses = []
    for x in batches(device, split):
        loss = module(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if split:
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_parallel(device: torch.device) -> list[float]:
    ddp = DistributedDataParallel(model().to(device), bucket_cap_mb=0.0001)
    with ddp.no_sync():
        ddp(next(batches(device))).sum().backward()
    return trained(ddp, device)


def unused_parameters(device: torch.device) -> list[float]:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = model(), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    return trained(DistributedDataParallel(Half().to(device), find_unused_parameters=True), device)


def static_graph(device: torch.device) -> list[float]:
    options: dict[str, Any] = {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}
    return trained(DistributedDataParallel(model().to(device), **options), device)


def synchronised_batch_norm(device: torch.device) -> list[Any]:
    """PyTorch has it for GPUs alone; beside it stands the whole batch in one process."""
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = torch.randn(4 * n, 5, 3)
    layer: nn.Module = nn.BatchNorm1d(5)
    if device.type != "cpu":
        whole, layer = whole[4 * rank : 4 * rank + 4], nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    x = whole.to(device).requires_grad_()
    layer.to(device)
    y = layer(x)
    (y**3).sum().backward()
    assert x.grad is not None
    results = [y.detach().cpu(), x.grad.cpu()]
    if device.type == "cpu":
        results = [t[4 * rank : 4 * rank + 4] for t in results]
    return [t.mul(1e3).round().tolist() for t in results] + [layer.running_var.tolist()]


def as_nccl_does(device: torch.device) -> list[Any]:
    """Gathers into a tensor of any shape, averages of integers and blocks of calls, which gloo has none of."""
    n, rank = dist.get_world_size(), dist.get_rank()
    if device.type == "cpu":
        return [[*range(n)] * 2, [int(-(n + 1) / 2)], [float(n)] * 3]
    gathered = torch.empty(1, 2 * n, device=device)
    dist.all_gather_into_tensor(gathered, torch.tensor([rank, rank], device=device, dtype=torch.float32))
    averaged = torch.tensor([-1 - rank], device=device)
    dist.all_reduce(averaged, dist.ReduceOp.AVG)
    parts = [torch.ones(1, device=device), torch.ones(2, device=device)]
    with dist.distributed_c10d._coalescing_manager(device=device):
        for part in parts:
            dist.all_reduce(part)
    return [gathered.reshape(n, 2).T.flatten().int().tolist(), averaged.tolist(), torch.cat(parts).tolist()]


def fully_sharded(device: torch.device) -> list[float]:
    whole = model().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for i in (0, 3, 5):
        fully_shard(whole[i], mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return trained(whole, device)


def tensor_parallel(device: torch.device) -> list[float]:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    whole = model().to(device)
    del whole[1]
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return trained(parallelize_module(whole, mesh, plan), device, split=False)


def attention(device: torch.device) -> list[Any]:
    """Of heads and of samples that lie with different processes, beside the whole on one."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    whole = [numbers(12, 12, 5, 4, dtype=torch.float32, seed=12).div(5) for _ in range(4)]
    for t in whole:
        dist.broadcast(t, 0)
    grad = whole.pop()
    results: list[Any] = []
    for dim in (0, 1):
        if device.type == "cpu":
            parts = [t.clone().requires_grad_() for t in whole]
        else:
            parts = [distribute_tensor(t.to(device), mesh, [Shard(dim)]).requires_grad_() for t in whole]
        out = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        dy = distribute_tensor(grad.to(device), mesh, out.placements) if isinstance(out, DTensor) else grad
        here = [out.detach(), *torch.autograd.grad(out, parts, dy)]
        assert device.type == "cpu" or all(t.placements == (Shard(dim),) for t in here)
        results += [(t.full_tensor() if isinstance(t, DTensor) else t).cpu().tolist() for t in here]
    return results


def releases(device: torch.device) -> bool:
    """What has been exchanged is not kept: a training would fill the memory."""
    x = torch.ones(3, device=device)
    kept = torch.utils.weak.TensorWeakRef(x)
    dist.all_reduce(x, async_op=True).wait()
    functional.all_reduce(x, "sum", dist.group.WORLD).wait()
    del x
    gc.collect()
    return kept() is None


def tensors(device: torch.device) -> list[Any]:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    x = distribute_tensor(torch.arange(24.0).reshape(8, 3).to(device), mesh, [Shard(0)])
    y = (x @ x.T).softmax(-1).redistribute(mesh, [Shard(1)])
    summed = functional.all_reduce(torch.full((2,), float(dist.get_rank() + 1), device=device), "sum", dist.group.WORLD)
    return [
        y.full_tensor().tolist(),
        y.to_local().shape,
        x.redistribute(mesh, [Replicate()]).sum().item(),
        summed.tolist(),
    ]


def checkpoints(device: torch.device, folder: Path) -> list[Any]:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    value = torch.arange(16.0).reshape(8, 2)
    state: dict[str, Any] = {"x": distribute_tensor(value.to(device), mesh, [Shard(0)]), "step": 3}
    path = folder / f"checkpoint-{device.type}"
    checkpoint.save(state, checkpoint_id=path)
    into: dict[str, Any] = {"x": distribute_tensor(torch.zeros(8, 2).to(device), mesh, [Shard(1)]), "step": 0}
    checkpoint.load(into, checkpoint_id=path)
    assert isinstance(into["x"], DTensor) and into["x"].placements == (Shard(1),)
    return [into["x"].full_tensor().tolist(), into["step"]]


def objects(device: torch.device) -> list[Any]:
    out: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(out, {"rank": dist.get_rank()})
    sent = [{"of": 0}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(sent, src=0, device=device)
    dist.barrier()
    return [out, sent]


# ---- inside tg.jit ---------------------------------------------------------------------------------------------------


def compiled(device: torch.device, joined: bool) -> list[Any]:
    """Collectives of the one program where the devices compute them; elsewhere an error, or no program."""
    n, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.group.WORLD]
    if n == 4:
        mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("rows", "columns"))
        groups += [mesh.get_group("rows"), mesh.get_group("columns")]

    def fn(x: torch.Tensor, whole: torch.Tensor) -> list[torch.Tensor]:
        results = [functional.all_reduce(x, "max", dist.group.WORLD) + 1]
        for group in groups:
            size = dist.get_world_size(group)
            gathered = torch.empty(size, *x.shape, device=x.device)
            dist.all_gather_into_tensor(gathered.view(-1, *x.shape[1:]), x * 2, group)
            part = torch.empty(x.shape, device=x.device)
            work = dist.reduce_scatter_tensor(part, whole[: 2 * size].square(), group=group, async_op=True)
            assert work is not None
            work.wait()
            results += [gathered, part]
        outs = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(outs, x + rank)
        exchanged = torch.empty_like(whole)
        if device.type != "cpu":
            dist.all_to_all_single(exchanged, whole)
        dist.all_reduce(x)  # an argument, in place
        dist.broadcast(whole, 1)
        return [*results, torch.stack(outs), whole + x[:1]]

    run = tg.jit(fn, compile="first") if device.type != "cpu" else fn
    outcome: list[Any] = []
    for seed in range(2):
        x, whole = (numbers(k, 3, dtype=torch.float32, seed=seed).to(device) for k in (2, 2 * n))
        try:
            results = run(x, whole)
        except tg.TracedValueError as error:
            assert not joined and "inside a compiled function" in str(error)
            results = fn(x, whole)
        outcome += [t.tolist() for t in (x, whole, *results)]
    return outcome


def compiled_training(device: torch.device, joined: bool) -> list[Any]:
    """Whole steps, with gradients that the program adds up, and with `DistributedDataParallel`."""
    losses = []
    for ddp in (False, True):
        module: nn.Module = model().to(device)
        module = DistributedDataParallel(module) if ddp else module
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)

        def step(x: torch.Tensor, module: nn.Module = module, optimizer: Any = optimizer, ddp: bool = ddp) -> Any:
            loss = module(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for p in () if ddp else module.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            optimizer.step()
            return loss

        run = tg.jit(step, compile="first") if device.type != "cpu" and joined else step
        losses.append([run(x).item() for x in batches(device)])
    return losses


def differing_calls(device: torch.device) -> list[str]:
    """What a process is told where the others call something else: all of them, and nothing has been exchanged."""
    rank = dist.get_rank()
    said: list[str] = []

    def twice(x: torch.Tensor) -> None:
        for _ in range(1 + rank):
            dist.all_reduce(x)

    for call in (
        lambda: dist.all_reduce(torch.ones(30 + rank, device=device)),
        lambda: dist.all_reduce(torch.ones(30, device=device, dtype=[torch.int32, torch.float32][rank % 2])),
        lambda: dist.broadcast(torch.ones(30, device=device), rank),
        lambda: tg.jit(twice, compile="first")(torch.ones(30, device=device)),
    ):
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said


def main(backend: str, folder: Path, every: bool) -> None:
    dist.init_process_group("graft")
    device = tg.device(backend)
    cpu = torch.device("cpu")
    joined = backend == "jax"  # the devices compute collectives together
    some = dist.new_group([0, 1])
    groups = [dist.group.WORLD] if dist.get_world_size() == 2 else [dist.group.WORLD, some]
    result: dict[str, Any] = {"backend": dist.get_backend(), "collectives": {}}
    for group in groups:
        if dist.get_rank(group) >= 0:
            result["collectives"].update(same_collectives(device, group, joined, every))
    for fn in (static_graph, synchronised_batch_norm, as_nccl_does):
        result[fn.__name__] = [fn(cpu), fn(device)]
    for fn in (data_parallel, unused_parameters, fully_sharded, tensor_parallel, attention, tensors, objects, releases):
        result[fn.__name__] = [fn(cpu), fn(device)]
    result["checkpoints"] = [checkpoints(cpu, folder), checkpoints(device, folder)]
    for inside in (compiled, compiled_training):
        result[inside.__name__] = [inside(cpu, joined), inside(device, joined)]
    if joined:
        result["differing"] = differing_calls(device)
    backend_of = torch.ones(1, device=device).untyped_storage().cell.backend  # type: ignore[attr-defined]
    result["joined"] = (backend_of.joined_as() is not None) == joined
    (folder / f"result-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "every" in sys.argv)
