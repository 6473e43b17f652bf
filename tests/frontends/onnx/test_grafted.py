"""ONNX models on each backend: values, weights, gradients, compiled calls, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import tensorflow as tf
import torch
from onnx import helper
from tests.frontends.onnx.models import BOOL, FLOAT, INT64, branching, flattened, looping, model, perceptron

import tensorgraft as tg
from tensorgraft.errors import ShapeError, TracedValueError
from tensorgraft.frontends.onnx.planning import UnsupportedOperatorError
from tensorgraft.frontends.onnx.reading import InvalidModelError

ONTO = ("numpy", "jax", "torch", "tensorflow")


def native(x: Any, onto: str) -> Any:
    if isinstance(x, np.ndarray):
        return {"torch": torch.from_numpy, "jax": jnp.asarray, "tensorflow": tf.constant}.get(onto, np.asarray)(x)
    return x


def called(program: Any, onto: str, *args: Any, **kwargs: Any) -> Any:
    out = tg.graft(program, onto=onto)(*(native(a, onto) for a in args), **kwargs)
    return [to_numpy(x) for x in out] if isinstance(out, tuple | list) else to_numpy(out)


def to_numpy(x: Any) -> np.ndarray:
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def jitted(net: Any) -> Any:
    pure = tg.graft(net, onto="jax")
    return jax.jit(lambda *args: pure(*args))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def by_hand(x: np.ndarray) -> np.ndarray:
    w1, b1, w2 = (onnx.numpy_helper.to_array(t) for t in perceptron().graph.initializer)
    return np.maximum(x @ w1 + b1, 0) @ w2


@pytest.mark.parametrize("onto", ONTO)
def test_values_and_sizes(onto: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(perceptron(), path)
    for n in (4, 1):
        x = numbers(n, 3)
        np.testing.assert_allclose(called(path, onto, x), by_hand(x), rtol=1e-5, atol=1e-6)
    x = numbers(2, 3, 2)
    np.testing.assert_array_equal(called(flattened(), onto, x), x.reshape(2, 6))


def test_weights_have_the_names_of_the_model() -> None:
    pure = tg.graft(perceptron(), onto="jax")
    assert set(pure.params) == {"layers.0.weight", "layers.0.bias", "onnx::MatMul_7"}
    module = tg.graft(perceptron(), onto="torch")
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == {
        "layers.0.weight": (3, 5), "layers.0.bias": (5,), "onnx.MatMul_7": (5, 2),
    }  # fmt: skip
    variables = tg.graft(perceptron(), onto="tensorflow").trainable_variables
    assert sorted(tuple(v.shape) for v in variables) == [(3, 5), (5,), (5, 2)]


def test_numbers_of_one_element_and_statistics_are_not_trained() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["y"]),
    ]
    weights = {n: np.ones(2, np.float32) for n in ("scale", "shift", "mean", "variance")}
    weights["half"] = np.array(0.5, np.float32)
    net = model(nodes, {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 2])}, weights)
    module = tg.graft(net, onto="torch")
    assert {n for n, _ in module.named_parameters()} == {"scale", "shift"}
    assert {n for n, _ in module.named_buffers()} == {"mean", "variance", "half_"}  # modules have `half`


def test_gradients_are_those_of_the_same_network_in_pytorch() -> None:
    x = numbers(4, 3)
    weights = {t.name: torch.tensor(onnx.numpy_helper.to_array(t), requires_grad=True)
               for t in perceptron().graph.initializer}  # fmt: skip
    w1, b1, w2 = weights.values()
    (torch.relu(torch.from_numpy(x) @ w1 + b1) @ w2).square().sum().backward()

    module = tg.graft(perceptron(), onto="torch")
    module(torch.from_numpy(x)).square().sum().backward()
    for p, w in zip(module.parameters(), weights.values(), strict=True):
        torch.testing.assert_close(p.grad, w.grad)

    apply, params, buffers = tg.graft(perceptron(), onto="jax")
    gradients = jax.jit(jax.grad(lambda p: jnp.square(apply(p, buffers, jnp.asarray(x))[0]).sum()))(params)
    for name, w in weights.items():
        np.testing.assert_allclose(gradients[name], w.grad, rtol=1e-5)

    net = tg.graft(perceptron(), onto="tensorflow")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(net(tf.constant(x))))
    for v, g in zip(net.trainable_variables, tape.gradient(loss, net.trainable_variables), strict=True):
        wanted = next(w.grad for w in weights.values() if tuple(w.shape) == tuple(v.shape))
        np.testing.assert_allclose(g, wanted, rtol=1e-5)


def test_gradients_of_what_tensorflow_compiles_by_itself() -> None:
    """LU is a loop that its backend compiles, whose program keeps values for the derivative."""
    net = model([helper.make_node("Det", ["x"], ["y"])], {"x": (FLOAT, [2, 3, 3])}, {"y": (FLOAT, [2])})
    x = tf.constant(numbers(2, 3, 3))
    expected = np.linalg.det(x.numpy())[:, None, None] * np.linalg.inv(x.numpy()).swapaxes(1, 2)
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tg.graft(net, onto="tensorflow")(x))
        np.testing.assert_allclose(tape.gradient(loss, x), expected, rtol=1e-4, atol=1e-5)
        later = tg.graft(net, onto="tensorflow")(x)  # the program as it was, and before the next derivative
        np.testing.assert_allclose(later, np.linalg.det(x.numpy()), rtol=1e-4)


def test_gradients_through_padding_by_an_input() -> None:
    nodes = [helper.make_node("Pad", ["x", "pads", "value"], ["y"])]
    net = model(nodes, {"x": (FLOAT, [2]), "value": (FLOAT, [])}, {"y": (FLOAT, [4])}, {"pads": np.array([0, 2])})
    x, value = torch.ones(2, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    y = tg.graft(net, onto="torch")(x, value)
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert y.tolist() == [1, 1, 3, 3]
    assert x.grad.tolist() == [1, 2] and value.grad.item() == 7


def test_gradients_where_two_branches_meet() -> None:
    net = model([helper.make_node("Softplus", ["x"], ["y"])], {"x": (FLOAT, [3])}, {"y": (FLOAT, [3])})
    x = np.array([-1, 0, 1], np.float32)
    expected = 1 / (1 + np.exp(-x))
    leaf = torch.tensor(x, requires_grad=True)
    tg.graft(net, onto="torch")(leaf).sum().backward()
    np.testing.assert_allclose(leaf.grad, expected, rtol=1e-6)
    pure = tg.graft(net, onto="jax")
    np.testing.assert_allclose(jax.grad(lambda x: pure(x).sum())(jnp.asarray(x)), expected, rtol=1e-6)
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tg.graft(net, onto="tensorflow")(variable))
    np.testing.assert_allclose(tape.gradient(loss, variable), expected, rtol=1e-6)


@pytest.mark.parametrize("onto", ONTO)
def test_branches_and_loops_read_values(onto: str) -> None:
    for x in (numbers(3), -np.abs(numbers(3))):
        np.testing.assert_allclose(called(branching(), onto, x), x + 1 if x.sum() > 0 else x - 1)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(called(looping(None), onto, x), x * 64)  # 3 * 64 is the first over 100
    np.testing.assert_array_equal(called(looping(2), onto, x), x * 4)


def test_branches_and_loops_in_compiled_functions() -> None:
    for net in (branching(), looping(None), looping(2), looping(50)):
        for x in (np.ones(3, np.float32), -np.ones(3, np.float32) / 4):
            if "Loop" in str(net) and x[0] < 0 and not any(t.name == "trips" for t in net.graph.initializer):
                continue  # it would not end
            wanted = called(net, "numpy", x)
            np.testing.assert_allclose(jitted(net)(jnp.asarray(x)), wanted)
            graph = tf.function(tg.graft(net, onto="tensorflow"))
            np.testing.assert_allclose(graph(tf.constant(x)), wanted)


def test_a_saved_function_needs_no_onnx(tmp_path: Path) -> None:
    net = tg.graft(perceptron(), onto="numpy")
    x = numbers(4, 3)
    wanted = net(x)
    net.save(tmp_path)
    np.testing.assert_array_equal(tg.load(tmp_path)(x), wanted)


def test_external_data_is_read_from_the_folder_alone(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    net = perceptron()
    onnx.save(net, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    x = numbers(2, 3)
    np.testing.assert_allclose(called(path, "numpy", x), by_hand(x), rtol=1e-5)

    data = tmp_path / "data.bin"
    content = data.read_bytes()
    data.write_bytes(content[:-4])
    with pytest.raises(InvalidModelError, match=r"net\.onnx.*onnx::MatMul_7.*takes 40 bytes"):
        tg.graft(path, onto="numpy")
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"data\.bin"):
        tg.graft(path, onto="numpy")
    elsewhere = tmp_path / "models"
    elsewhere.mkdir()
    data.write_bytes(content)
    outside = onnx.load(path, load_external_data=False)
    for t in outside.graph.initializer:
        next(e for e in t.external_data if e.key == "location").value = "../data.bin"
    (elsewhere / "net.onnx").write_bytes(outside.SerializeToString())
    with pytest.raises(InvalidModelError, match="not in the model's folder"):
        tg.graft(elsewhere / "net.onnx", onto="numpy")


def test_arguments_are_checked_against_the_inputs() -> None:
    net = tg.graft(perceptron(), onto="numpy")
    with pytest.raises(TypeError, match=r"'x'.*x: float32\(batch, 3\).*is float64\(4, 3\)"):
        net(numbers(4, 3).astype(np.float64))
    with pytest.raises(ValueError, match=r"has shape \(4, 2\)"):
        net(numbers(4, 2))
    with pytest.raises(TypeError, match="lacks its input 'x'"):
        net()
    with pytest.raises(TypeError, match="'z' that it does not have"):
        net(z=numbers(4, 3))
    two = model(
        [helper.make_node("Add", ["a", "b"], ["y"])], {"a": (FLOAT, ["n"]), "b": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}
    )
    with pytest.raises(ValueError, match="'n' is 3 in 'a'"):
        tg.graft(two, onto="numpy")(numbers(3), numbers(4))


def test_what_is_not_known_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    def net(op: str, domain: str = "", opset: int = 20) -> Any:
        nodes = [helper.make_node(op, ["x"], ["y"], name="the_node", domain=domain)]
        domains = {domain: 1} if domain else {}
        return model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, opset=opset, domains=domains)

    with pytest.raises(UnsupportedOperatorError, match=r"acme\.Frobnicate 'the_node'(.|\n)*make_function"):
        tg.graft(net("Frobnicate", "acme"), onto="numpy")
    with pytest.raises(UnsupportedOperatorError, match=r"Frobnicate 'the_node'.*does not have it in opset"):
        tg.graft(net("Frobnicate"), onto="numpy")
    with pytest.raises(InvalidModelError, match=r"opset 99.*install a newer onnx"):
        tg.graft(net("Relu", opset=99), onto="numpy")
    with pytest.raises(FileNotFoundError):
        tg.graft(tmp_path / "none.onnx", onto="numpy")
    (tmp_path / "no.onnx").write_bytes(b"\x00\x01 no model")
    with pytest.raises(InvalidModelError, match=r"no\.onnx"):
        tg.graft(tmp_path / "no.onnx", onto="numpy")
    unordered = perceptron()
    unordered.graph.node.reverse()
    with pytest.raises(InvalidModelError, match="reads 'c', which is no input"):
        tg.graft(unordered, onto="numpy")


def test_a_function_of_the_model_is_taken_as_it_is() -> None:
    double = helper.make_function(
        "acme", "Scale", ["x"], ["y"],
        [_with_reference(helper.make_node("Constant", [], ["c"]), "value_float", "factor"),
         helper.make_node("Mul", ["x", "c"], ["y"])],
        [helper.make_opsetid("", 20)], ["factor"],
    )  # fmt: skip
    nodes = [helper.make_node("Scale", ["x"], ["y"], domain="acme", factor=3.0)]
    net = model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, functions=[double], domains={"acme": 1})
    for onto in ONTO:
        np.testing.assert_array_equal(called(net, onto, np.ones(2, np.float32)), [3, 3])


def _with_reference(node: Any, name: str, reference: str) -> Any:
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=reference, type=onnx.AttributeProto.FLOAT))
    return node


def test_shapes_that_depend_on_values_are_errors_in_compiled_functions() -> None:
    net = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (FLOAT, [3])}, {"y": (INT64, [1, "n"])})
    x = np.array([0, 2, 3], np.float32)
    for onto in ONTO:
        np.testing.assert_array_equal(called(net, onto, x), [[1, 2]])
    with pytest.raises(TracedValueError):
        jitted(net)(jnp.asarray(x))
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    given = model(nodes, {"x": (FLOAT, [1]), "shape": (INT64, [1])}, {"y": (FLOAT, ["n"])})
    for onto in ONTO:
        assert called(given, onto, np.ones(1, np.float32), np.array([3])).shape == (3,)
    with pytest.raises(TracedValueError, match="'shape', which a compiled program computes only later"):
        jitted(given)(jnp.ones(1), jnp.array([3]))


def test_extents_that_are_not_known_are_refused_and_exported() -> None:
    net = tg.graft(perceptron(), onto="tensorflow")
    with pytest.raises(ShapeError, match=r"'x' of net.* has shape \(None, 3\).*tg.export"):
        tf.function(lambda x: net(x)).get_concrete_function(tf.TensorSpec((None, 3), tf.float32))
    module = tg.graft(perceptron(), onto="torch")
    sizes = {"args": ({0: torch.export.Dim("batch")},)}
    program = torch.export.export(module, (torch.ones(4, 3),), dynamic_shapes=sizes)
    x = numbers(7, 3)
    np.testing.assert_allclose(to_numpy(program.module()(torch.from_numpy(x))), by_hand(x), rtol=1e-5, atol=1e-6)


def test_weights_may_be_passed_in_a_call() -> None:
    w = np.zeros((5, 2), np.float32)
    for onto in ONTO:
        assert not called(perceptron(), onto, numbers(4, 3), **{"onnx::MatMul_7": native(w, onto)}).any()


def test_quantised_weights_are_not_dense_without_a_count() -> None:
    rng = np.random.default_rng(0)
    weights = {"fc.weight": rng.normal(size=(64, 8)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "fc.weight"], ["y"])]
    net = model(nodes, {"x": (FLOAT, ["n", 64])}, {"y": (FLOAT, ["n", 8])}, weights)
    x = numbers(4, 64)
    apply, params, buffers = tg.graft(net, onto="jax")
    codes = {"fc.weight": tg.quantize(params["fc.weight"], "int8_per_channel")}
    expected = x @ np.asarray(tg.dequantize(codes["fc.weight"]))
    by_codes = tg.graft(lambda p, x: apply(p, buffers, x)[0], onto="jax")
    module = tg.quantize_(tg.graft(net, onto="torch"), "int8_per_channel", filter=lambda *_: True)
    with tg.quantization.on_missing("error"):
        np.testing.assert_allclose(by_codes(codes, jnp.asarray(x)), expected, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(to_numpy(module(torch.from_numpy(x))), expected, rtol=1e-3, atol=1e-3)
        with pytest.raises(Exception, match="quantised"):
            apply(codes, buffers, jnp.asarray(x))
    np.testing.assert_allclose(apply(codes, buffers, jnp.asarray(x))[0], expected, rtol=1e-3, atol=1e-3)


def test_random_numbers_come_from_the_seed_of_the_call() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    net = model(nodes, {"x": (FLOAT, [8])}, {"y": (FLOAT, [8])})
    x = np.zeros(8, np.float32)
    first = called(net, "numpy", x, seed=3)
    for onto in ONTO:
        np.testing.assert_allclose(called(net, onto, x, seed=3), first, rtol=1e-5)
        assert not np.array_equal(called(net, onto, x), called(net, onto, x))
    with pytest.raises(TracedValueError, match="pass seed="):
        jitted(net)(jnp.asarray(x))


def test_results_have_memory_of_their_own() -> None:
    net = model([helper.make_node("Identity", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    x = torch.ones(2)
    tg.graft(net, onto="torch")(x).zero_()
    assert x.tolist() == [1, 1]
    returned = model(
        [helper.make_node("Identity", ["w"], ["y"])], {"c": (BOOL, [])}, {"y": (FLOAT, [2])},
        {"w": np.ones(2, np.float32)},
    )  # fmt: skip
    module = tg.graft(returned, onto="torch")
    module(torch.tensor(True)).detach().zero_()
    assert module.w.tolist() == [1, 1]


def _calling(name: str, calls: str, times: int = 1) -> Any:
    """Return a function that calls another one, `times` after each other."""
    nodes = [helper.make_node(calls, [f"t{i}"], [f"t{i + 1}"], domain="acme") for i in range(times)]
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("acme", 1)]
    return helper.make_function("acme", name, ["t0"], [f"t{times}"], nodes, versions)


def test_functions_that_never_end_are_refused() -> None:
    def net(*functions: Any) -> Any:
        node = helper.make_node(functions[0].name, ["x"], ["y"], domain="acme")
        types = {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}
        return model([node], *types, functions=list(functions), domains={"acme": 1})

    with pytest.raises(InvalidModelError, match=r"'A' calls itself, by acme\.A"):
        tg.graft(net(_calling("A", "A")), onto="numpy")
    with pytest.raises(InvalidModelError, match=r"'A' calls itself, by acme\.A .*in B"):
        tg.graft(net(_calling("A", "B"), _calling("B", "A")), onto="numpy")
    double = [_calling(f"F{i}", f"F{i - 1}", 2) for i in range(40, 0, -1)]
    double.append(_calling("F0", "Neg", 0))
    double[-1].node.append(helper.make_node("Neg", ["t0"], ["y"]))
    double[-1].output[0] = "y"
    with pytest.raises(InvalidModelError, match="more than 262144 nodes"):
        tg.graft(net(*double), onto="numpy")
    np.testing.assert_array_equal(called(net(*double[-4:]), "numpy", np.ones(2, np.float32)), [1, 1])
    long = [_calling(f"F{i}", f"F{i - 1}") for i in range(100, 0, -1)]
    with pytest.raises(InvalidModelError, match="nested more than 64 deep"):
        tg.graft(net(*long, double[-1]), onto="numpy")


def test_parts_that_contradict_each_other_are_refused() -> None:
    net = flattened()
    net.graph.node[1].attribute[0].CopyFrom(helper.make_attribute("value_ints", "text"))
    with pytest.raises(InvalidModelError, match="'value_ints', which is no INTS"):
        tg.graft(net, onto="numpy")
    net = perceptron()
    net.opset_import[0].version = 0
    with pytest.raises(InvalidModelError, match="version 0"):
        tg.graft(net, onto="numpy")
    net = perceptron()
    net.graph.input[0].type.tensor_type.elem_type = 255
    with pytest.raises(InvalidModelError, match="no element type 255"):
        tg.graft(net, onto="numpy")
    net = perceptron()
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
    places = onnx.numpy_helper.from_array(np.array([-1]))
    net.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    with pytest.raises(InvalidModelError, match="outside of its shape"):
        tg.graft(net, onto="numpy")


def test_extents_that_are_no_names_may_be_any() -> None:
    types = {"x": (FLOAT, ["?", "?"])}, {"y": (FLOAT, None)}
    net = model([helper.make_node("Neg", ["x"], ["y"])], *types)
    assert called(net, "numpy", numbers(2, 3)).shape == (2, 3)
    net.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert called(net, "numpy", numbers(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("onto", ONTO[1:])
def test_gradients_of_rows_that_are_masked_wholly(onto: str) -> None:
    """Attention of a row without keys is zero by its definition, and so is its derivative."""
    shape = (1, 1, 2, 3)
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])
    inputs = {**dict.fromkeys("qkv", (FLOAT, [*shape])), "mask": (BOOL, [2, 2])}
    net = model([node], inputs, {"y": (FLOAT, [*shape])}, opset=24)
    arrays = [numbers(*shape) for _ in range(3)]
    visible = np.array([[False, False], [True, True]])
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.nn.functional.scaled_dot_product_attention(leaves[0][:, :, 1:], *leaves[1:])
    y.square().sum().backward()
    if onto == "torch":
        moved = [torch.tensor(a, requires_grad=True) for a in arrays]
        tg.graft(net, onto=onto)(*moved, torch.from_numpy(visible)).square().sum().backward()
        found = [x.grad for x in moved]
    elif onto == "jax":
        apply, params, buffers = tg.graft(net, onto=onto)
        found = jax.grad(lambda xs: (apply(params, buffers, *xs, visible)[0] ** 2).sum())(arrays)
    else:
        moved = [tf.constant(a) for a in arrays]
        with tf.GradientTape() as tape:
            tape.watch(moved)
            total = tf.reduce_sum(tg.graft(net, onto=onto)(*moved, tf.constant(visible)) ** 2)
        found = tape.gradient(total, moved)
    for x, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(np.asarray(x), leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_errors_of_nodes_name_the_node_and_the_file(tmp_path: Path) -> None:
    """What a rule does not expect is an error of the model: the node, its inputs and the file are said."""

    def failing(error: type[Exception], words: str, op: str, inputs: list[np.ndarray], **attributes: Any) -> None:
        names = [f"x{i}" for i in range(len(inputs))]
        types = [(helper.np_dtype_to_tensor_dtype(x.dtype), [*x.shape]) for x in inputs]
        node = helper.make_node(op, names, ["y"], "the_node", **attributes)
        net = model([node], dict(zip(names, types, strict=True)), {"y": (FLOAT, None)})
        onnx.save(net, tmp_path / "net.onnx")
        with pytest.raises(error, match=words) as info:
            tg.graft(tmp_path / "net.onnx", onto="numpy")(*inputs)
        told = "\n".join([str(info.value), *info.value.__notes__])
        assert "'the_node'" in told and "net.onnx" in told

    x = numbers(2, 3)
    failing(InvalidModelError, "lacks its input 'B'", "MatMul", [x])
    failing(InvalidModelError, "at most 2 and 1", "Add", [x, x, x])
    failing(InvalidModelError, "IndexError", "GatherElements", [x, np.array([[0, 7]])], axis=1)
    failing(InvalidModelError, "is float32, the operator takes tensor.uint16", "BitShift", [x, x], direction="LEFT")
    failing(ValueError, "no picture", "ImageDecoder", [np.arange(9, dtype=np.uint8)])
