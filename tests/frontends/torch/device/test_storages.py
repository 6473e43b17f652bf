"""Storages on the device: every method either does what it does on the CPU or raises; none ends the process."""

import contextlib
import copy
import itertools
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def test_made_from_nothing(device):
    s = torch.UntypedStorage(5, device=device)
    assert s.device == device and len(s) == s.nbytes() == s.size() == 5 and s.tolist() == [0] * 5
    assert torch.UntypedStorage([1, 2, 3], device=device).tolist() == [1, 2, 3]
    assert torch.UntypedStorage(device=device).nbytes() == 0
    with pytest.raises(RuntimeError, match="must not be negative"):
        torch.UntypedStorage(-1, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bfloat16, torch.int64], ids=str)
def test_same_as_on_the_cpu(device, dtype):
    cpu = torch.arange(6).to(dtype)
    here = cpu.to(device).untyped_storage()
    there = cpu.untyped_storage()
    assert here.tolist() == there.tolist() == list(here) and here.cpu().tolist() == there.tolist()
    assert here[3] == there[3] and here[-1] == there[-1] and here.nbytes() == there.nbytes()
    clone = here.clone()
    clone.fill_(1)
    assert clone.tolist() == [1] * len(there) and here.tolist() == there.tolist()
    assert repr(here).splitlines()[:-1] == repr(there).splitlines()[:-1]


def test_writes_are_seen_by_tensors(device):
    t = torch.zeros(2, dtype=torch.int32, device=device)
    s = t.untyped_storage()
    s[0] = 7
    s[4:6] = 1
    assert t.tolist() == [7, 257]
    s.byteswap(torch.int32)
    assert t.tolist() == [7 << 24, 0x01010000]
    s.copy_(torch.tensor([5, 6], dtype=torch.int32).untyped_storage())
    assert t.tolist() == [5, 6]
    host = torch.UntypedStorage(8)
    host.copy_(s)
    assert host.tolist() == s.tolist()
    s.fill_(0)
    assert t.tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_moves(device):
    s = torch.arange(4.0).to(device).untyped_storage()
    for name in tg.backends():
        moved = s.to(device=tg.device(name))
        assert moved.device == tg.device(name) and moved.tolist() == s.tolist()
    assert s.to(device=device) is s and s.is_graft and s.cpu().graft(device.index).device == device
    assert s.untyped() is s and s.float().tolist() == [float(b) for b in s.tolist()]


def test_typed_storages(device):
    s = torch.arange(4.0).to(device)._typed_storage()
    assert s._getitem(2) == 2.0 and s.dtype == torch.float32
    s._setitem(0, 9.0)
    assert s._untyped_storage.tolist() == torch.tensor([9.0, 1, 2, 3]).untyped_storage().tolist()
    assert torch.TypedStorage(4, dtype=torch.float32, device=device, _internal=True)._untyped_storage.device == device


def test_errors_are_pytorchs(device):
    s = torch.UntypedStorage(4, device=device)
    cpu = torch.UntypedStorage(4)
    for wrong in (
        lambda s: s[9],
        lambda s: s["a"],
        lambda s: s.__setitem__(0, 1.5),
        lambda s: s.copy_(torch.UntypedStorage(5)),
        lambda s: s.fill_("a"),
    ):
        with pytest.raises(Exception) as expected:
            wrong(cpu)
        with pytest.raises(type(expected.value)):
            wrong(s)
    with pytest.raises(RuntimeError, match="not resizable"):
        s.resize_(8)
    with pytest.raises(NotImplementedError, match="since a slice shares memory"):
        s[1:3]
    with pytest.raises(TypeError, match="cannot pin"):
        s.pin_memory()
    assert s.resize_(4) is s and not s.is_shared() and s.share_memory_() is s and not s.is_pinned()


def test_copies_share_as_the_originals_do(device):
    base = torch.arange(6.0).to(device)
    view = base[2:4]
    parameter = torch.nn.Parameter(base.clone())
    a, b, c = copy.deepcopy([base, view, parameter])
    b += 100
    assert a.tolist() == [0, 1, 102, 103, 4, 5] and base.tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(c, torch.nn.Parameter) and c.requires_grad and c.device == device
    shallow = copy.copy(base)
    shallow[0] = 50
    assert base[0].item() == 50
    assert copy.copy(base.untyped_storage()).data_ptr() != base.untyped_storage().data_ptr()
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(parameter * 2)


def test_resizing_a_tensor(device):
    t = torch.arange(4.0).to(device)
    assert t.resize_(2).tolist() == [0, 1]
    assert t.resize_(4).tolist() == [0, 1, 2, 3]
    assert t.resize_(6).tolist()[:4] == [0, 1, 2, 3]
    assert t.resize_(2, 2).stride() == (2, 1)
    out = torch.empty(0, device=device)
    torch.add(torch.ones(3, device=device), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    t.set_()
    assert t.shape == (0,)
    t.set_(out.untyped_storage(), 1, (2,), (1,))
    t.fill_(5)
    assert out.tolist() == [2, 5, 5]


def test_sharing_and_pinning_change_nothing(device):
    t = torch.ones(3, device=device)
    assert t.share_memory_() is t and t.pin_memory() is t and not t.is_pinned()
    cpu = torch.ones(3)
    assert cpu.pin_memory() is cpu  # no backend needs it


# ---- nothing ends the process ----------------------------------------------------------------------------------------

ARGUMENTS = ("", "x", "s", "1", "1, 0", "slice(0, 2)", "torch.int32", "x, x", "fn", "0, i", "0, i, x")
# not for users: they take and give raw handles; and what waits for input
SKIP = """
    _set_cdata _free_weak_ref _release_ipc_counter _release_ipc_counter_cuda _expired _new_with_weak_ptr
    _new_shared_filename_cpu _new_shared_fd_cpu _new_shared_cuda _new_using_fd_cpu _new_using_filename_cpu
"""
PROBE = """
    import signal, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    import tensorgraft.frontends.torch

    def make():
        return torch.arange(6.0).reshape(2, 3).to({device!r})

    def give_up(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    for name in {names!r}:
        for arguments in {arguments!r}:
            print(name, arguments, flush=True)
            given = dict(x=make(), s=make().untyped_storage(), i=torch.tensor([0, 1]).to({device!r}), torch=torch)
            given["fn"] = lambda *values: values[0]
            signal.alarm(20)
            try:
                attribute = getattr(make(){of}, name)
                result = attribute(*eval(f"({{arguments}},)" if arguments else "()", given))
                isinstance(result, torch.TypedStorage) or repr(result)  # which asks for value by value
            except Exception:
                pass
            finally:
                signal.alarm(0)
    print("end")
"""


def probe(device, of, names, arguments=ARGUMENTS):
    code = textwrap.dedent(PROBE).format(device=device, of=of, names=names, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    last = done.stdout.splitlines()[-1] if done.stdout else "import"
    assert last == "end" and done.returncode == 0, f"exit code {done.returncode} in: {last}\n{done.stderr[-2000:]}"


@pytest.mark.slow_with("torch", "tensorflow")
def test_no_storage_method_ends_the_process(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ARGUMENTS if device.index else ("", "s")  # the same C++ below, and JAX compiles each of them
    probe(str(device), ".untyped_storage()", sorted(set(dir(torch.UntypedStorage)) - set(SKIP.split())), arguments)


def test_no_typed_storage_method_ends_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probe("graft:1", "._typed_storage()", sorted(set(dir(torch.TypedStorage)) - set(SKIP.split())), ARGUMENTS[:6])


MEMORY = """
    __array__ __copy__ __deepcopy__ __dlpack__ __dlpack_device__ __reduce_ex__ __setstate__ apply_ data_ptr map_ map2_
    mutable_data_ptr const_data_ptr new numpy pin_memory is_pinned put_ record_stream resize_ resize_as_ set_
    share_memory_ storage storage_offset to_dense to_mkldnn to_sparse tolist type untyped_storage view_as _typed_storage
    _storage __array_interface__ __cuda_array_interface__ _to_sparse _nested_tensor_size _coalesced_ ipu xpu cuda hpu
    swap_ _view_func unsafe_chunk sparse_resize_ reinforce crow_indices values index_put_ refine_names dim_order
"""


def test_no_tensor_method_that_handles_memory_ends_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [name for name in MEMORY.split() if hasattr(torch.Tensor, name)]
    assert len(names) > 30
    probe("graft:1", "", names, list(itertools.chain(ARGUMENTS, ["'cpu'"])))


def test_new_tensors_lie_in_a_shape_of_their_own():
    """What is written into them by a compiled function needs no other shape, between which XLA computes it twice."""
    from tensorgraft.frontends.torch.core.tensors import cell_of

    device = tg.device("jax")
    x = torch.ones(4, 3, 2, device=device)
    laid = torch.empty_strided((4, 3), (1, 4), device=device)
    gaps = torch.empty_strided((4, 3), (6, 2), device=device)
    assert cell_of(torch.zeros_like(x)).array.shape == cell_of(x.new_empty(4, 3, 2)).array.shape == (4, 3, 2)
    assert cell_of(laid).array.shape == (3, 4) and cell_of(gaps).array.shape == (23,)
    assert cell_of(x.new_zeros(0, 3)).array.shape == (0,)
    for t, host in ((laid, torch.empty_strided((4, 3), (1, 4))), (gaps, torch.empty_strided((4, 3), (6, 2)))):
        values = torch.arange(12.0).view(4, 3)
        assert torch.equal(t.copy_(values.to(device)).cpu(), host.copy_(values)) and t.stride() == host.stride()


def test_out_of_another_size(device):
    """Whatever has made its memory: PyTorch does not resize what an array has looked at."""
    x = torch.arange(6.0).reshape(2, 3).to(device)
    for made in (torch.rand(4, device=device), torch.ones(4, device=device) + 1, torch.zeros(0, device=device)):
        with pytest.warns(UserWarning, match="was resized") if made.numel() else contextlib.nullcontext():
            torch.sin(x, out=made)
        assert torch.equal(made, x.sin())
