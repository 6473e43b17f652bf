"""Modules with sparse parameters, buffers, arguments and results on other frameworks, written as source, and under
`torch.compile`: as on the CPU."""

import copy

import jax
import numpy as np
import pytest
import scipy.sparse
import torch
from jax.experimental.sparse import BCOO, BCSR
from jax.experimental.sparse import grad as sparse_grad
from torch import nn

import tensorgraft as tg
from tensorgraft.errors import TracedValueError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),  # beta state; invariant checks are implicitly disabled
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]])
X = torch.arange(12.0).reshape(4, 3).sin()
LAYOUTS = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}
PARTS = {
    "coo": ["indices", "values"],
    "csr": ["crow_indices", "col_indices", "values"],
    "csc": ["ccol_indices", "row_indices", "values"],
}


class Graph(nn.Module):
    def __init__(self, adjacency, is_parameter=False):
        super().__init__()
        if is_parameter:
            self.adjacency = nn.Parameter(adjacency)
        else:
            self.register_buffer("adjacency", adjacency)
        self.linear = nn.Linear(3, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(6.0).reshape(2, 3).cos())
            self.linear.bias.copy_(torch.tensor([0.1, -0.2]))

    def forward(self, x):
        return torch.tanh(self.adjacency @ self.linear(x))


class OfArgument(Graph):
    def forward(self, a, x):
        return torch.tanh(a @ self.linear(x)), a * 2


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def expected(layout, is_parameter):
    """Return the module, its result, and the gradients of the sum of its squares."""
    module = Graph(LAYOUTS[layout](DENSE), is_parameter)
    out = module(X)
    out.square().sum().backward()
    gradients = {n: p.grad for n, p in module.named_parameters()}
    if is_parameter:  # PyTorch's gradient is dense
        i, j = DENSE.nonzero(as_tuple=True)
        order = np.lexsort((i, j)) if layout == "csc" else np.arange(5)
        gradients["adjacency.values"] = gradients.pop("adjacency")[i, j][order]
    return module, out.detach(), gradients


@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
class TestModules:
    def test_on_jax(self, layout, is_parameter):
        module, out, gradients = expected(layout, is_parameter)
        apply, params, buffers = tg.graft(module, onto="jax")
        assert set(params) == set(gradients)
        parts = [f"adjacency.{part}" for part in PARTS[layout]]
        assert list(buffers) == (parts[:-1] if is_parameter else parts)
        for run in (apply, jax.jit(apply)):
            result, after = run(params, buffers, X.numpy())
            close(result, out)
            assert set(after) == set(buffers)
        found = jax.grad(lambda p: (apply(p, buffers, X.numpy())[0] ** 2).sum())(params)
        for name, gradient in gradients.items():
            close(found[name], gradient)

    def test_on_tensorflow(self, layout, is_parameter):
        import tensorflow as tf

        module, out, gradients = expected(layout, is_parameter)
        grafted = tg.graft(module, onto="tensorflow")
        with tf.GradientTape() as tape:
            result = grafted(tf.constant(X.numpy()))
            loss = tf.reduce_sum(result**2)
        close(result, out)
        close(tf.function(grafted)(tf.constant(X.numpy())), out)
        for variable, gradient in zip(
            grafted.trainable_variables, tape.gradient(loss, grafted.trainable_variables), strict=True
        ):
            close(gradient, gradients[variable.name.removesuffix(":0")])

    def test_on_numpy(self, layout, is_parameter, tmp_path):
        module, out, _ = expected(layout, is_parameter)
        grafted = tg.graft(module, onto="numpy")
        close(grafted(X.numpy()), out)
        grafted.save(tmp_path)
        close(tg.load(tmp_path, onto="numpy")(X.numpy()), out)


@pytest.mark.parametrize(("onto", "layout"), [("numpy", "csr"), ("jax", "csr"), ("torch", "coo")])
def test_source(layout, onto):
    source = tg.source(expected(layout, onto != "numpy")[0], X, onto=onto)
    report = str(source.report)
    assert "different" not in report and "equal" in report
    assert "adjacency.values" in source.weights


JAX_ARRAYS = {
    "BCOO": BCOO.fromdense(DENSE.numpy()),
    "BCOO with padding": BCOO.fromdense(DENSE.numpy(), nse=8),
    "BCSR": BCSR.fromdense(DENSE.numpy()),
    "BCSR with padding": BCSR.fromdense(DENSE.numpy(), nse=8),
}


@pytest.mark.parametrize("kind", JAX_ARRAYS)
def test_arguments_and_results_of_jax(kind):
    module, a = OfArgument(DENSE), JAX_ARRAYS[kind]
    apply, params, buffers = tg.graft(module, onto="jax")
    out = module(DENSE, X)[0].detach()
    if isinstance(a, BCSR):  # JAX does not say so
        a = BCSR((a.data, a.indices, a.indptr), shape=a.shape, indices_sorted=True, unique_indices=True)
    for run in (apply, jax.jit(apply)):
        (result, twice), _ = run(params, buffers, a, X.numpy())
        close(result, out)
        assert type(twice) is type(a)
        close(twice.todense(), 2 * DENSE)
    found = sparse_grad(lambda a: (apply(params, buffers, a, X.numpy())[0][0] ** 2).sum())(a)
    dense = DENSE.clone().requires_grad_()
    module(dense, X)[0].square().sum().backward()
    i, j = DENSE.nonzero(as_tuple=True)
    close(found.data[:5], dense.grad[i, j])
    assert not found.data[5:].any()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr"])
def test_arguments_and_results_of_scipy(layout):
    module = OfArgument(DENSE)
    grafted = tg.graft(module, onto="numpy")
    a = getattr(scipy.sparse, f"{layout}_array")(DENSE.numpy())
    for _ in range(2):
        result, twice = grafted(a, X.numpy())
        close(result, module(DENSE, X)[0].detach())
        assert twice.format == layout and twice.shape == (4, 4)
        close(twice.toarray(), 2 * DENSE)


def test_elements_that_scipy_has_twice_are_added():
    grafted = tg.graft(OfArgument(DENSE), onto="numpy")
    double = scipy.sparse.csr_array((np.float32([1, 2]), [1, 1], [0, 2, 2, 2, 2]), shape=(4, 4))
    wanted = double.toarray()
    for a in (double, double.tocsc(), scipy.sparse.coo_array(([1, 2], ([0, 0], [1, 1])), (4, 4), np.float32)):
        close(grafted(a, X.numpy())[1].toarray(), 2 * wanted)
    assert double.nnz == 2  # it is left as it is


def test_arguments_and_results_of_tensorflow():
    import tensorflow as tf

    module = OfArgument(DENSE)
    grafted = tg.graft(module, onto="tensorflow")
    a, x = tf.sparse.from_dense(DENSE.numpy()), tf.constant(X.numpy())
    for run in (grafted, tf.function(lambda a, x: grafted(tf.sparse.from_dense(DENSE.numpy()), x))):
        if run is not grafted:
            with pytest.raises(ValueError, match="an unknown number of elements"):
                run(a, x)
            continue
        result, twice = run(a, x)
        close(result, module(DENSE, X)[0].detach())
        close(tf.sparse.to_dense(twice), 2 * DENSE)
    captured = tf.function(lambda x: grafted(a, x)[0])
    close(captured(x), module(DENSE, X)[0].detach())


def test_rows_of_tensorflow():
    """`IndexedSlices` are tensors with one sparse dimension."""
    import tensorflow as tf

    class Rows(nn.Module):
        def forward(self, rows):
            return rows * 3, rows.to_dense()

    rows = tf.IndexedSlices(tf.ones((3, 2)), tf.constant([1, 3, 1]), tf.constant([5, 2]))
    threefold, dense = tg.graft(Rows(), onto="tensorflow")(rows)
    assert isinstance(threefold, tf.IndexedSlices)
    close(tf.convert_to_tensor(threefold), 3 * tf.convert_to_tensor(rows).numpy())
    close(dense, tf.convert_to_tensor(rows))
    with pytest.raises(ValueError, match=r"tf\.IndexedSlices with a known dense_shape"):
        tg.graft(Rows(), onto="tensorflow")(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1])))


def test_buffers_that_the_module_writes():
    class Growing(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.register_buffer("a", a)

        def forward(self, x):
            self.a.values().mul_(2)
            return self.a @ x

    apply, params, buffers = tg.graft(Growing(DENSE.to_sparse_csr()), onto="jax")
    result, buffers = apply(params, buffers, X.numpy())
    close(result, 2 * DENSE @ X)
    close(apply(params, buffers, X.numpy())[0], 4 * DENSE @ X)


class TestErrors:
    def test_layouts_that_a_framework_lacks(self):
        class Other(nn.Module):
            def forward(self, a):
                return a.to_sparse_csc() if a.layout is torch.sparse_csr else a

        module = OfArgument(DENSE)
        apply, params, buffers = tg.graft(module, onto="jax")
        batches = BCOO.fromdense(np.ones((2, 3, 3), np.float32), n_batch=1)
        with pytest.raises(TypeError, match="expected a BCOO without batch dimensions"):
            apply(params, buffers, batches, X.numpy())
        with pytest.raises(TypeError, match="expected a SciPy array in the format coo, csr, csc or bsr, got lil"):
            tg.graft(module, onto="numpy")(scipy.sparse.lil_array((4, 4), dtype=np.float32), X.numpy())

        class Columns(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("a", DENSE.to_sparse_csc())

            def forward(self):
                return self.a * 2

        apply, params, buffers = tg.graft(Columns(), onto="jax")
        with pytest.raises(TypeError, match="layout csc, only BCOO and BCSR matrices: return another layout"):
            apply(params, buffers)

    def test_rows_of_a_bcsr_that_may_have_an_element_twice(self):
        apply, params, buffers = tg.graft(OfArgument(DENSE), onto="jax")
        twice = BCSR((np.float32([1, 2]), np.array([1, 1]), np.array([0, 2, 2, 2, 2])), shape=(4, 4))
        with pytest.raises(ValueError, match="a BCSR with elements that are not in order or occur twice"):
            apply(params, buffers, twice, X.numpy())
        with pytest.raises(TypeError, match="indices_sorted=True, unique_indices=True"):
            jax.jit(apply)(params, buffers, twice, X.numpy())

    def test_tensors_that_are_no_buffers(self):
        module = Graph(DENSE)
        del module.adjacency
        module.adjacency = DENSE.to_sparse_csr()
        apply, params, buffers = tg.graft(module, onto="jax")
        with pytest.raises(TracedValueError, match=r"a sparse tensor of shape .* on the CPU \(register it as"):
            apply(params, buffers, X.numpy())

    def test_source_of_arguments_and_results(self):
        with pytest.raises(TypeError, match=r"an argument is a sparse tensor of shape .4, 4. and layout sparse_csr"):
            tg.source(OfArgument(DENSE), DENSE.to_sparse_csr(), X, onto="jax")

        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("a", DENSE.to_sparse_csr())

            def forward(self, x):
                return self.a * x

        with pytest.raises(
            TypeError, match="Scaled returns a sparse tensor, which written functions have no class for"
        ):
            tg.source(Scaled(), torch.ones(()), onto="jax")


@pytest.mark.parametrize(("backend", "layout"), [("jax", "csr"), ("numpy", "csr"), ("numpy", "coo")])
def test_under_torch_compile(backend, layout):
    """Dynamo leaves functions of sparse tensors to Python, and compiles nothing that their kernels call."""
    from torch._dynamo.utils import counters

    device = tg.device(backend)
    module, out, gradients = expected(layout, False)
    moved = copy.deepcopy(module) if layout == "coo" else expected(layout, False)[0]
    moved.zero_grad()
    moved = moved.to(device)
    compiled, of_argument = torch.compile(moved), torch.compile(OfArgument(DENSE).to(device))
    counters.clear()
    for _ in range(2):
        moved.zero_grad()
        result = compiled(X.to(device))
        close(result.detach().cpu(), out)
        result.square().sum().backward()
        for name, p in moved.named_parameters():
            close(p.grad.cpu(), gradients[name])
        result, twice = of_argument(LAYOUTS[layout](DENSE).to(device), X.to(device))
        close(result.detach().cpu(), out)
        close(twice.to_dense().cpu(), 2 * DENSE)
    assert counters["frames"]["total"] < 40
    with pytest.raises(RuntimeError, match="fullgraph=True found no compiled frames"):
        torch.compile(moved, fullgraph=True)(X.to(device))
