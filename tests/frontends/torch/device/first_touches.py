"""Ways in which a program may touch the device first. Run as a script: each in a process of its own, forked from one
that has imported PyTorch and nothing of ours. Prints the names of those that failed, with the traceback.

A function that begins with `no_` uses PyTorch without the device: the front end must not be loaded by it.
"""

# the names that a program has from PyTorch before the front end is there
import copy
import faulthandler
import importlib
import io
import os
import pickle
import sys
import tempfile
import traceback
import warnings

import torch
from safetensors import safe_open
from torch import Event, Generator, Stream, UntypedStorage, cond
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.utils.checkpoint import checkpoint
from torch.utils.dlpack import from_dlpack, to_dlpack

ONES = [1.0, 1.0]
CPU = torch.ones(2)
SCRIPTED = torch.jit.script(torch.nn.Linear(2, 1)) if hasattr(torch.jit, "script") else None


def is_ones(t):
    assert t.device == torch.device("graft", 0), t.device
    assert t.tolist() == ONES, t
    assert (t + 1).tolist() == [2.0, 2.0]


def factory():
    is_ones(torch.ones(2, device="graft"))


def to():
    is_ones(CPU.to("graft"))


def method():
    is_ones(CPU.graft())


def new_tensor():
    is_ones(CPU.new_tensor(ONES, device="graft"))


def raw_operator():
    is_ones(torch.ops.aten.ones.default([2], device=torch.device("graft")))


def raw_random():
    torch.manual_seed(3)
    drawn = torch.ops.aten.randn.default([4], device=torch.device("graft"))
    torch.manual_seed(3)
    assert drawn.tolist() == torch.randn(4, device="graft").tolist()


def seeded_before():
    torch.manual_seed(5)
    drawn = torch.randn(4, device="graft").tolist()
    torch.manual_seed(5)
    assert drawn == torch.randn(4, device="graft").tolist()
    assert torch.graft.initial_seed() == 5


def script_function():
    import importlib.util

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write("import torch\ndef f():\n    return torch.ones([2], device=torch.device('graft'))\n")
        spec = importlib.util.spec_from_file_location("program", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        is_ones(torch.jit.script(module.f)())


def script_module_from_before():
    x = CPU[None]
    expected = SCRIPTED(x)
    SCRIPTED.to("graft")
    assert abs(SCRIPTED(x.to("graft")).item() - expected.item()) < 1e-6
    assert SCRIPTED.weight.device.type == "graft"


def context():
    with torch.device("graft"):
        is_ones(torch.ones(2))


def default_device():
    torch.set_default_device("graft")
    is_ones(torch.ones(2))


def module_to():
    is_ones(torch.nn.Linear(2, 2).to("graft").weight.data.mul(0)[0] + 1)


def lazy_module():
    lazy = torch.nn.LazyLinear(2).graft()
    assert lazy(torch.ones(1, 2, device="graft")).device.type == "graft"


def attribute():
    assert torch.graft.device_count() >= 1 and torch.graft.current_device() == 0


def from_the_module():
    from torch.graft import manual_seed_all, mem_get_info

    manual_seed_all(1)
    assert mem_get_info()[1] > 0 and torch.graft.initial_seed() == 1


def names_of_the_module():
    assert {"synchronize", "get_rng_state", "Stream"} <= set(dir(torch.graft))


def operators_of_ours():
    assert torch.ops.graft.convert.default(torch.ones(2, device="graft"), torch.int64, torch.preserve_format).dtype


def storage():
    assert UntypedStorage(4, device="graft").nbytes() == 4


def storage_to():
    moved = CPU.untyped_storage().to(device="graft")
    assert moved.device.type == "graft" and moved.tolist() == CPU.untyped_storage().tolist()


def storage_method():
    assert CPU.untyped_storage().graft().tolist() == CPU.untyped_storage().tolist()


def _file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return file


def load_with_location():
    is_ones(torch.load(_file(CPU), map_location="graft"))


def load_with_function():
    is_ones(torch.load(_file(CPU), map_location=lambda storage, location: storage.graft()))


def _of_another_process(x):
    """What a file has that a process wrote which used the device; this one has not."""
    read, write = os.pipe()
    if not os.fork():
        os.write(write, x())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.wait()
    assert content
    return content


def load_what_was_there():
    content = _of_another_process(lambda: _file(torch.ones(2, device="graft")).getvalue())
    assert "tensorgraft.frontends.torch" not in sys.modules
    is_ones(torch.load(io.BytesIO(content)))


def load_what_was_there_legacy():
    def written():
        torch.save(torch.ones(2, device="graft"), file := io.BytesIO(), _use_new_zipfile_serialization=False)
        return file.getvalue()

    is_ones(torch.load(io.BytesIO(_of_another_process(written))))


def unpickle():
    content = _of_another_process(lambda: pickle.dumps(torch.ones(2, device="graft")))
    is_ones(pickle.loads(content))


def unpickle_generator():
    content = _of_another_process(lambda: pickle.dumps(Generator(device="graft").manual_seed(2)))
    assert pickle.loads(content).device == torch.device("graft:0")


def script_file():
    def written():
        file = io.BytesIO()
        torch.jit.save(SCRIPTED.to("graft"), file)
        return file.getvalue()

    content = _of_another_process(written)
    assert torch.jit.load(io.BytesIO(content)).weight.device == torch.device("graft:0")


def safetensors():
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.safetensors")
        save_file({"x": CPU}, path)
        with safe_open(path, framework="pt", device="graft") as file:
            is_ones(file.get_tensor("x"))
        is_ones(load_file(path, device="graft")["x"])


def generator():
    g = Generator(device="graft").manual_seed(1)
    assert isinstance(g, torch.Generator) and torch.rand(2, device="graft", generator=g).shape == (2,)


def event():
    start, end = Event("graft", enable_timing=True), Event(enable_timing=True)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0


def stream():
    Stream("graft").synchronize()


def dlpack():
    is_ones(from_dlpack(CPU, device="graft"))


def autocast():
    with torch.autocast("graft", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="graft") @ torch.ones(2, 2, device="graft")).dtype == torch.bfloat16


def scaler():
    assert torch.amp.GradScaler("graft").scale(torch.ones((), device="graft")).item() == 65536


def accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("graft")
    assert torch.accelerator.current_device_index() == 0 and torch.accelerator.device_count() >= 1
    torch.accelerator.synchronize()


def pinned():
    assert CPU.pin_memory() is CPU


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert (torch.ones(2, device="graft") + 1).device == torch.device("graft:0")
    is_ones(torch.ones(2, device="graft"))


def inference_mode():
    with torch.inference_mode():
        is_ones(torch.ones(2, device="graft"))
    w = torch.ones(2, device="graft", requires_grad=True)
    (w * 2).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


def names_from_before():
    x = torch.ones(2, device="graft", requires_grad=True)
    is_ones(cond(torch.tensor(True, device="graft"), lambda x: x * 1, lambda x: x * 2, (x,)).detach())
    is_ones(while_loop(lambda x: x.sum() < 2, lambda x: (x + 1,), (torch.zeros(2, device="graft"),))[0])
    assert scan(lambda c, x: (c + x, c + x), torch.zeros((), device="graft"), x.detach())[1].tolist() == [1.0, 2.0]
    with dual_level():
        w = torch.ones(2, 2, device="graft")
        dual = torch.nn.functional.linear(make_dual(x.detach(), torch.ones(2, device="graft")), w)
        assert unpack_dual(dual).tangent.tolist() == [2.0, 2.0]
    checkpoint(lambda x: x * x, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    to_dlpack(x.detach())


def compiled_before():
    double = torch.compile(lambda x: x * 2)
    assert "tensorgraft.frontends.torch" not in sys.modules
    is_ones(double(torch.ones(2, device="graft")) / 2)


def context_before_another_device():
    with torch.device("graft"):
        torch.ones(2)
        torch.graft.set_device(torch.device("graft", 1) if torch.graft.device_count() > 1 else 0)
        assert torch.tensor(1.0).device.index == torch.graft.current_device()


def options_of_the_compiler():
    try:
        torch.compile(lambda x: x, backend="tensorgraft", options={"no such option": 1})
    except Exception as error:
        assert "no such option" in str(error)
    else:
        raise AssertionError("it was taken")


def of_tensorgraft():
    import tensorgraft as tg

    is_ones(torch.ones(2, device=tg.device("numpy")))


def default_of_tensorgraft():
    import tensorgraft as tg

    tg.set_default_device("numpy")
    is_ones(torch.ones(2, device="graft"))


def in_a_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        for t in pool.map(lambda i: torch.ones(2, device="graft"), range(8)):
            is_ones(t)


def no_device():
    del os.environ["TENSORGRAFT_BACKEND"]  # which makes the device PyTorch's accelerator
    torch.manual_seed(1)
    torch.seed()
    assert torch.device("graft").type == "graft" and hasattr(torch, "graft") and torch.graft.is_available()
    w = torch.nn.Linear(2, 2)
    w(torch.rand(3, 2)).sum().backward()
    torch.optim.AdamW(w.parameters(), foreach=True).step()
    copy.deepcopy(w).load_state_dict(torch.load(_file(w.state_dict())))
    pickle.loads(pickle.dumps(CPU))
    assert CPU.new_tensor(ONES).numpy().tolist() == ONES and not CPU.is_graft
    assert torch.utils.data.DataLoader(torch.utils.data.TensorDataset(CPU)).__iter__()
    with torch.autocast("cpu"), torch.random.fork_rng():
        torch.from_dlpack(CPU.numpy())
    with warnings.catch_warnings(record=True):  # looks at every module
        warnings.warn("x", stacklevel=1)
    assert isinstance(Generator(), torch.Generator) and torch.get_device_module("graft") is torch.graft


def main(names):
    # what each would load for itself, and that is not the front end
    for module in ("torch._dynamo", "tensorgraft.transforms", "tensorgraft.quantization.backend"):
        importlib.import_module(module)
    importlib.import_module("tensorgraft.hub.registry").get("numpy")
    failed = 0
    for name in names or [n for n, f in globals().items() if getattr(f, "__code__", None) and f.__module__ == __name__]:
        if name in ("main", "is_ones") or name.startswith("_"):
            continue
        pid = os.fork()
        if not pid:
            status = 1
            faulthandler.dump_traceback_later(300, exit=True)
            try:
                assert "tensorgraft.frontends.torch" not in sys.modules
                globals()[name]()
                assert ("tensorgraft.frontends.torch" in sys.modules) != name.startswith("no_"), "is it loaded?"
                status = 0
            except BaseException:
                print(f"{name}:\n{traceback.format_exc()}", flush=True)
            os._exit(status)
        failed += os.waitpid(pid, 0)[1] != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
