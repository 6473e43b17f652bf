"""In-place updates: the table of `cells` against PyTorch, and every native array that can be updated."""

import jax
import numpy as np
import pytest
import torch
from tests.updates.cells import BACKENDS, PLACES, WAYS, expected, ours

import tensorgraft as tg
import tensorgraft.array_api as xp

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_a_cell_of_the_table(place, way, backend, monkeypatch):
    if backend == "torch" and place != "slice":  # Inductor takes seconds; `python -m tests.updates.cells` has it all
        monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")
    found, right = ours(place, way, backend), expected(place, way)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def _holders():
    yield "numpy", lambda a: np.array(a), np.asarray
    yield "torch", lambda a: torch.from_numpy(np.array(a)), lambda t: t.detach().cpu().numpy()
    yield "graft", lambda a: torch.from_numpy(np.array(a)).to(tg.device("jax")), lambda t: t.detach().cpu().numpy()
    for backend in BACKENDS:
        yield f"Array on {backend}", lambda a, b=backend: xp.asarray(np.array(a), device=b), np.asarray
    if "tensorflow" in BACKENDS:
        import tensorflow as tf

        yield "tf.Variable", tf.Variable, lambda v: v.numpy()


HOLDERS = {name: (make, read) for name, make, read in _holders()}
ANY = pytest.mark.parametrize("holder", HOLDERS)
COMBINE = {"set": None, "add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


@ANY
def test_values_are_converted_and_broadcast(holder):
    make, read = HOLDERS[holder]
    x = make(np.zeros((2, 3), np.int32))
    assert (
        tg.inplace_update(x, np.array([1.9, -1.9, 7.0]) if holder != "graft" else torch.tensor([1.9, -1.9, 7.0])) is x
    )
    np.testing.assert_array_equal(read(x), [[1, -1, 7]] * 2)
    tg.inplace_update(x, 5, keep_dtype=False)
    np.testing.assert_array_equal(read(x), np.full((2, 3), 5))
    assert read(x).dtype == np.int32


BOUNDS = r"index -?\d is out of bounds for (axis|dimension) \d (of|with) size \d"
# what is wrong -> the call, the error, its text (bounds are said in the words of what is indexed)
WRONG = {
    "shape": (
        lambda x, of: tg.inplace_update(x, of(np.zeros((4, 3), np.int32))),
        ValueError,
        r"a value of shape \(4, 3\) does not broadcast to \(2, 3\), the shape of the updated elements",
    ),
    "more axes": (
        lambda x, of: tg.inplace_update(x, of(np.zeros((1, 2, 3), np.int32))),
        ValueError,
        r"a value of shape \(1, 2, 3\) does not broadcast to \(2, 3\), the shape of the updated elements",
    ),
    "number": (
        lambda x, of: tg.inplace_update(x, 2.5, keep_dtype=False),
        TypeError,
        r"the Python number 2\.5 does not fit into int32 \(keep_dtype=True converts it\)",
    ),
    "large number": (
        lambda x, of: tg.inplace_update(x, 2**40, keep_dtype=False),
        TypeError,
        r"the Python number 1099511627776 does not fit into int32",
    ),
    "dtype": (
        lambda x, of: tg.inplace_update(x, of(np.zeros((2, 3), np.int64)), keep_dtype=False),
        TypeError,
        r"values of int64 do not all fit into int32 \(keep_dtype=True converts them\)",
    ),
    "text": (
        lambda x, of: tg.inplace_update(x, "text"),
        TypeError,
        r"inplace_update: expected a number or an array as the value, got a builtins\.str",
    ),
    "mode": (
        lambda x, of: tg.scatter_update(x, 0, 1, "mean"),
        ValueError,
        r"mode is 'mean', expected one of set, add, multiply, min, max",
    ),
    "shape of a part": (
        lambda x, of: tg.scatter_update(x, of(np.array([0, 1])), of(np.zeros(2, np.int32))),
        ValueError,
        r"a value of shape \(2,\) does not broadcast to \(2, 3\), the shape of the updated",
    ),
    "index": (lambda x, of: tg.scatter_update(x, (0, -4), 1, "add"), IndexError, BOUNDS),
    "array of indices": (lambda x, of: tg.scatter_update(x, of(np.array([0, 7])), 1), IndexError, BOUNDS),
    "more indices": (
        lambda x, of: tg.scatter_update(x, (0, 0, 0), 1, "add"),
        IndexError,
        r"3 indices|too many indices",
    ),
    "mask": (
        lambda x, of: tg.scatter_update(x, of(np.array([True, False, True])), 1, "add"),
        IndexError,
        "mask|boolean index",
    ),
    "floats as indices": (
        lambda x, of: tg.scatter_update(x, of(np.array([0.0, 1.0])), 1, "add"),
        IndexError,
        r"scatter_update: expected an index array of integers or booleans, got float64",
    ),
    "text as an index": (
        lambda x, of: tg.scatter_update(x, "a", 1),
        IndexError,
        r"scatter_update: expected an integer, a slice, \.\.\., None or an array .* got a builtins\.str",
    ),
}


@ANY
@pytest.mark.parametrize("what", WRONG)
def test_errors_are_the_same_and_leave_the_array_as_it_was(holder, what):
    make, read = HOLDERS[holder]
    call, error, text = WRONG[what]
    x = make(np.arange(6, dtype=np.int32).reshape(2, 3))
    with pytest.raises(error, match=text):
        call(x, lambda a: torch.from_numpy(a).to(x.device) if holder == "graft" else a)
    np.testing.assert_array_equal(read(x), np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("what", WRONG)
def test_backends_say_it_in_the_same_words(what):
    call, error, _ = WRONG[what]
    texts = set()
    for backend in BACKENDS:
        with pytest.raises(error) as caught:
            call(xp.zeros((2, 3), dtype=xp.int32, device=backend), lambda a, b=backend: xp.asarray(a, device=b))
        texts.add(str(caught.value))
    assert len(texts) == 1


@ANY
@pytest.mark.parametrize("mode", COMBINE)
def test_scatter_update(holder, mode):
    make, read = HOLDERS[holder]
    start = np.linspace(-2.0, 3.0, 12).reshape(4, 3)
    for index, value in (
        (np.array([3, 1]), np.array([[0.5], [-4.0]])),
        ((slice(0, 2), 1), np.array([7.0, -7.0])),
        (-1, np.array(0.25)),
    ):
        x, right = make(start), start.copy()
        right[index] = value if mode == "set" else COMBINE[mode](right[index], value)
        given = torch.from_numpy(value).to(x.device) if isinstance(x, torch.Tensor) else value
        at = (
            torch.from_numpy(index).to(x.device)
            if isinstance(x, torch.Tensor) and isinstance(index, np.ndarray)
            else index
        )
        assert tg.scatter_update(x, at, given, mode) is x
        np.testing.assert_allclose(read(x), right)


@ANY
@pytest.mark.parametrize("mode", ["add", "multiply", "min", "max"])
def test_every_update_of_a_place_counts(holder, mode):
    make, read = HOLDERS[holder]
    x, right = make(np.array([1.0, 2.0, 3.0])), np.array([1.0, 2.0, 3.0])
    index, value = np.array([0, 2, 0]), np.array([5.0, -1.0, 0.5])
    COMBINE[mode].at(right, index, value)
    if isinstance(x, torch.Tensor):
        index, value = torch.from_numpy(index).to(x.device), torch.from_numpy(value).to(x.device)
    tg.scatter_update(x, index, value, mode)
    np.testing.assert_allclose(read(x), right)


def test_what_never_changes_names_what_does():
    x = jax.numpy.ones(3)
    with pytest.raises(TypeError, match=r"a jax.* is immutable\. Hold it in tensorgraft\.array_api\.asarray\(x\)"):
        tg.inplace_update(x, 1.0)
    with pytest.raises(TypeError, match=r"expected an Array of tensorgraft\.array_api, .* got a builtins\.list"):
        tg.inplace_update([1], 1)
    with pytest.raises(ValueError, match="read-only"):
        tg.inplace_update(np.broadcast_to(np.ones(1), (3,)), 1)


def test_views_of_native_arrays_see_it():
    base = np.zeros((3, 2))
    tg.inplace_update(base.T[0], np.array([1.0, 2.0, 3.0]))
    assert base[:, 0].tolist() == [1, 2, 3]
    t = torch.zeros(3, 2, device=tg.device("jax"))
    tg.inplace_update(t.t()[0], torch.tensor([1.0, 2.0, 3.0], device=t.device))
    assert t[:, 0].tolist() == [1, 2, 3]


def test_inside_jax_jit():
    @jax.jit
    def program(a, v):
        x = xp.asarray(a, device="jax")
        tg.inplace_update(x[1:], v)
        tg.scatter_update(x, xp.asarray(jax.numpy.array([0, 0]), device="jax"), 2.0, "add")
        return x.native

    made = program(jax.numpy.zeros(3), jax.numpy.array([1.0, 2.0]))
    assert made.tolist() == [4, 1, 2]
    slope = jax.grad(lambda v: program(jax.numpy.zeros(3), v).sum())(jax.numpy.array([1.0, 2.0]))
    assert slope.tolist() == [1, 1]


@pytest.mark.parametrize("fullgraph", [True])
def test_inside_torch_compile(fullgraph):
    @torch.compile(backend="eager", fullgraph=fullgraph)
    def program(x, v):
        tg.inplace_update(x[1:], v)
        return x * 2

    x, v = torch.zeros(3), torch.tensor([1.0, 2.0], requires_grad=True)
    y = program(x * 1, v)
    y.sum().backward()
    assert y.tolist() == [0, 2, 4]
    assert v.grad.tolist() == [2, 2]


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="no TensorFlow")
def test_inside_tf_function():
    import tensorflow as tf

    x = tf.Variable([0.0, 1.0, 2.0])

    @tf.function
    def program(v, at):
        tg.scatter_update(x, at, v, "multiply")
        tg.scatter_update(x, slice(1, 3), v, "add")
        tg.inplace_update(x, x + 1.0)

    program(tf.constant([2.0, 3.0]), tf.constant([1, -1]))
    assert x.numpy().tolist() == [1, 5, 10]


def test_a_compiled_write_on_jax_stays_in_its_memory():
    x = xp.zeros((1000,), device="jax")

    @tg.jit
    def write(x, v):
        x[3] = v

    write(x, xp.asarray(2.0, device="jax"))
    before = x._cell.array.unsafe_buffer_pointer()  # `.native` would say that others know the memory
    write(x, xp.asarray(3.0, device="jax"))
    assert x._cell.array.unsafe_buffer_pointer() == before
    assert float(x[3]) == 3
