"""Data loaders and other processes."""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tensorgraft as tg
import tensorgraft.frontends.torch

# JAX warns of every fork; what a worker does with the device is tested here
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(params=tg.backends())
def device(request):
    torch.ones(2, device=tg.device(request.param)).sum().item()
    return tg.device(request.param)


class OnDevice(Dataset):
    def __init__(self, device):
        self.device = device

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.ones(2, device=self.device) * i


@pytest.mark.parametrize("workers", [0, 2])
def test_cpu_data(device, workers):
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    loader = DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True, timeout=60 if workers else 0)
    assert [x.to(device).tolist() for x, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_device_data(device):
    batches = list(DataLoader(OnDevice(device), batch_size=2))
    assert [b.tolist() for b in batches] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]] and batches[0].device == device


def test_generator_of_a_loader(device):
    def order(generator):
        return [x.item() for (x,) in DataLoader(TensorDataset(torch.arange(8)), shuffle=True, generator=generator)]

    assert order(torch.Generator().manual_seed(3)) == order(torch.Generator().manual_seed(3))


def test_device_data_in_workers():
    numpy = tg.device("numpy")
    batches = list(DataLoader(OnDevice(numpy), batch_size=2, num_workers=1, timeout=60))
    assert [b.tolist() for b in batches] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]] and batches[0].device == numpy


def test_a_backend_with_threads_refuses_after_a_fork():
    jax = tg.device("jax")
    torch.ones(2, device=jax).sum().item()
    with pytest.raises(RuntimeError, match="Cannot use the backend 'jax' in a forked subprocess"):
        list(DataLoader(OnDevice(jax), num_workers=1, timeout=60))


def double(tensor, queue):
    queue.put((tensor * 2).tolist())


def test_tensors_are_copied_to_other_processes():
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=double, args=(torch.arange(3.0).to(tg.device("numpy")), queue))
    process.start()
    assert queue.get(timeout=60) == [0, 2, 4]
    process.join()
    assert multiprocessing.active_children() == [] or process.exitcode == 0


def test_the_front_end_may_be_imported_before_pytorch():
    program = "import tensorgraft.frontends.torch; import torch; print(torch.ones(2, device='graft').sum().item())"
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "2.0", done.stderr
