"""SavedModels as sources: what is known of a network are a graph and its variables."""

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

tf = pytest.importorskip("tensorflow")
X = np.random.default_rng(0).standard_normal((3, 4)).astype("f")


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def module():
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            rng = np.random.default_rng(1)
            arrays = {"kernel": (4, 6), "bias": (6,), "out": (6, 2)}
            for name, shape in arrays.items():
                setattr(self, name, tf.Variable(rng.standard_normal(shape).astype("f"), name=name))

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def __call__(self, x):
            return self.head(tf.tanh(x @ self.kernel + self.bias))

        def head(self, h):
            return h @ self.out

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def named(self, x):
            return {"logits": self(x)}

    return Module()


def check(ported):
    assert ported.ok and not ported.mapping.unmatched, str(ported)
    target = Layers()
    target.load_state_dict({n: torch.from_numpy(np.array(x)) for n, x in ported.weights.items()})
    return target(torch.from_numpy(X)).detach().numpy()


def test_a_module_that_is_called(tmp_path):
    saved = module()
    tf.saved_model.save(saved, str(tmp_path / "m"))
    np.testing.assert_allclose(check(tg.port(tmp_path / "m", Layers().eval(), X)), saved(X).numpy(), atol=1e-5)


def test_a_signature_alone(tmp_path):
    class Parts(tf.Module):
        def __init__(self):
            super().__init__()
            self.module = module()

    saved = Parts()
    tf.saved_model.save(saved, str(tmp_path / "m"), signatures={"only": saved.module.named})
    found = check(tg.port(str(tmp_path / "m"), Layers().eval(), X))
    np.testing.assert_allclose(found, saved.module(X).numpy(), atol=1e-5)


def test_a_model_that_keras_exported(tmp_path):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential([layers.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(2, use_bias=False)])
    model.export(str(tmp_path / "m"), verbose=False)
    np.testing.assert_allclose(check(tg.port(tmp_path / "m", Layers().eval(), X)), np.asarray(model(X)), atol=1e-5)
    back = tg.port(Layers().eval(), tmp_path / "m", X)
    assert back.ok and not back.mapping.unmatched, str(back)


def test_a_folder_without_one_function(tmp_path):
    saved = module()
    spec = tf.TensorSpec([None, 4], tf.float32)

    class Several(tf.Module):
        def __init__(self):
            super().__init__()
            self.module = saved

    several = Several()
    signatures = {"a": saved.named, "b": saved.__call__.get_concrete_function(spec)}
    tf.saved_model.save(several, str(tmp_path / "m"), signatures=signatures)
    with pytest.raises(TypeError, match=r"nor one signature alone \(a, b\)"):
        tg.port(tmp_path / "m", Layers().eval(), X)
