"""Random chains of views and writes, on the device and on the CPU: geometry, values and aliasing agree."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import tensorgraft as tg

DEVICES = tg.backends()


def view_step(draw, t):
    """A view of `t`, as a function that can be applied to any tensor of its geometry."""
    choices = ["view_as_itself"]
    if t.dim():
        choices += ["slice", "select", "unsqueeze", "expand", "flatten", "diagonal", "unfold", "as_strided", "narrow"]
    if t.dim() >= 2:
        choices += ["transpose", "permute", "movedim"]
    if t.numel() % 2 == 0 and t.numel():
        choices += ["split_in_two", "int_view"]
    if (
        t.dim()
        and t.shape[-1] == 2
        and t.stride(-1) == 1
        and all(s % 2 == 0 for s in t.stride()[:-1])
        and t.storage_offset() % 2 == 0
    ):
        choices.append("complex")
    kind = draw(st.sampled_from(choices))
    axis = draw(st.integers(0, max(t.dim() - 1, 0)))
    n = t.shape[axis] if t.dim() else 1
    if kind == "slice":
        start, step = draw(st.integers(0, n)), draw(st.integers(1, 3))
        stop = draw(st.integers(start, n))
        return lambda x: x[(slice(None),) * axis + (slice(start, stop, step),)]
    if kind == "narrow" and n:
        start = draw(st.integers(0, n - 1))
        return lambda x: x.narrow(axis, start, n - start)
    if kind == "select" and n:
        at = draw(st.integers(-n, n - 1))
        return lambda x: x.select(axis, at)
    if kind == "unsqueeze":
        return lambda x: x.unsqueeze(axis)
    if kind == "expand":
        return lambda x: x.unsqueeze(0).expand(2, *x.shape)
    if kind == "flatten":
        return lambda x: x.view(-1) if x.is_contiguous() else x
    if kind == "diagonal" and t.dim() >= 2:
        return lambda x: x.diagonal(min(1, x.shape[1] - 1) if x.shape[1] else 0, 0, 1)
    if kind == "unfold" and n >= 2:
        return lambda x: x.unfold(axis, 2, 1)
    if kind == "as_strided" and t.numel() >= 2:
        return lambda x: x.as_strided((2,), (1,), x.storage_offset()) if x.is_contiguous() else x
    if kind == "transpose":
        return lambda x: x.transpose(0, -1)
    if kind == "permute":
        order = draw(st.permutations(range(t.dim())))
        return lambda x: x.permute(order)
    if kind == "movedim":
        return lambda x: x.movedim(axis, 0)
    if kind == "split_in_two":
        return lambda x: x.view(2, -1) if x.is_contiguous() else x
    if kind == "int_view":
        return lambda x: x.view(torch.int32) if x.dtype == torch.float32 else x
    if kind == "complex":
        return lambda x: torch.view_as_complex(x) if x.dtype == torch.float32 else x
    return lambda x: x


def overlaps(t):
    """Elements share places though no stride is 0 (an expanded tensor raises)."""
    at = torch.zeros((), dtype=torch.int64)
    for n, s in zip(t.shape, t.stride(), strict=True):
        at = at[..., None] + torch.arange(n) * s
    return len(at.unique()) < at.numel() and torch._debug_has_internal_overlap(t) != 1


def write_step(draw, t):
    kinds = ["fill", "mul", "copy", "setitem", "none"]
    if overlaps(t):  # PyTorch leaves other writes to overlapping windows undefined
        kinds = ["fill", "none"]
    kind = draw(st.sampled_from(kinds))
    if kind == "fill":
        return lambda x: x.fill_(3)
    if kind == "mul":
        return lambda x: x.mul_(2)
    if kind == "copy":
        return lambda x: x.copy_(torch.arange(x.numel()).reshape(x.shape).to(x.device))
    if kind == "setitem" and t.dim() and t.shape[0]:
        return lambda x: x.__setitem__(slice(None, None, 2), 1)
    return lambda x: None


@pytest.mark.parametrize("name", DEVICES)
@settings(max_examples=40)
@given(data=st.data())
def test_chains(name, data):
    shape = data.draw(st.sampled_from([(4, 6), (2, 3, 4), (24,), (3, 4, 2)]))
    host = torch.arange(24.0).reshape(shape) + 1
    device = host.to(tg.device(name))
    chain = [(host, device)]
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = chain[-1]
        step = view_step(data.draw, a)
        a, b = step(a), step(b)
        assert (a.shape, a.stride(), a.storage_offset(), a.dtype) == (b.shape, b.stride(), b.storage_offset(), b.dtype)
        assert a._is_view() == b._is_view()
        chain.append((a, b))
        write = write_step(data.draw, a)
        version, error, mine = a._version, None, None
        try:
            write(a)
        except RuntimeError as e:
            error = e
        try:
            write(b)
        except RuntimeError as e:
            mine = e
        assert (error is None) == (mine is None), (error, mine)
        assert a._version - version == b._version - version or error
        for x, y in chain:
            torch.testing.assert_close(y.cpu(), x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", DEVICES)
def test_autograd_through_views_and_writes(name):
    def program(x, w):
        y = x * 2
        y[1:3, ::2].mul_(w)
        y.t()[0].add_(w[:1].sum())
        z = y.view(2, 12)
        z[0, :3] = w[1]
        return (z.sin() * torch.arange(12.0, device=x.device)).sum()

    host = [
        torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_(),
        torch.tensor([2.0, 3.0, 4.0]).requires_grad_(),
    ]
    device = [t.detach().to(tg.device(name)).requires_grad_() for t in host]
    program(*host).backward()
    program(*device).backward()
    for a, b in zip(host, device, strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad)
