"""`tensorgraft run` and `compare` of TensorFlow scripts. (What happens to functions: tests/frontends/tensorflow.)"""

import json
import re

import numpy as np
import pytest

from tensorgraft.cli.functions import imports

TRAINING = """
    import sys
    import tensorflow as tf

    tf.random.set_seed(0)
    x = tf.random.normal((32, 8))
    y = tf.cast(tf.argmax(x[:, :3], 1), tf.int32)
    w, b = tf.Variable(tf.random.normal((8, 3))), tf.Variable(tf.zeros(3))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b))
        for v, d in zip((w, b), tape.gradient(loss, (w, b))):
            v.assign_sub(0.5 * d)
        return loss

    for epoch in range(int(sys.argv[1])):
        print(f"{epoch} {step(x, y).numpy():.5f} {w[0, 0].numpy():.5f}")
    if len(sys.argv) > 2:
        print(tf.function(tf.strings.as_string)(epoch).numpy().decode())
        print("torch" in sys.modules)
"""


def numbers(text):
    return [float(x) for x in re.findall(r"-?\d+\.?\d*", text)]


def test_a_training_loop(tensorgraft, python, script):
    path = script(TRAINING)
    native = python(path, 4).stdout.splitlines()
    ours = tensorgraft("run", "--on", "numpy", "--jit-report", path, 4, "more", TF_CPP_MIN_LOG_LEVEL="3")
    assert ours.returncode == 0, ours.stderr
    *losses, text, torch = ours.stdout.splitlines()
    assert (text, torch) == ("3", "False")
    np.testing.assert_allclose(numbers("\n".join(losses)), numbers("\n".join(native)), atol=2e-5)
    assert re.search(r"step +│ +1 │ +4", ours.stderr)
    assert "computed by TensorFlow, not on numpy" in ours.stderr and "AsString" in ours.stderr
    assert "it computes on strings" in re.sub(r"[│\s]+", " ", ours.stderr)


@pytest.mark.slow
def test_strict(tensorgraft, script):
    strict = tensorgraft("run", "--on", "numpy", "--strict-fallbacks", script(TRAINING), 1, "more")
    assert strict.returncode == 1 and "FallbackError: TensorFlow would have to compute AsString" in strict.stderr
    wrong = tensorgraft("run", "--on", "numpy", "--lazy", script(TRAINING), 1)
    assert wrong.returncode == 2 and "--lazy" in wrong.stderr


@pytest.mark.slow
def test_compare(tensorgraft, script):
    done = tensorgraft("compare", script(TRAINING), 3, "--on", "native", "--on", "jax", "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [o["results"] < 1e-4 for o in json.loads(done.stdout)["outcomes"]] == [True, True]


def test_what_a_script_imports(tmp_path, monkeypatch):
    path = tmp_path / "program.py"
    path.write_text("import os.path\nif 1:\n    from keras import layers\nfrom . import torch\n")
    assert imports([str(path)]) == {"os", "keras"}
    monkeypatch.chdir(tmp_path)
    assert imports(["program"], module=True) == {"os", "keras"}
    path.write_text("import (")
    assert imports([str(path)]) == imports([str(tmp_path / "nothing.py")]) == set()


@pytest.mark.slow
def test_a_script_without_functions_is_told_so(tensorgraft, script):
    done = tensorgraft("run", "--on", "numpy", script("import tensorflow as tf\nprint(float(tf.constant(2.0) * 3))"))
    assert done.stdout == "6.0\n" and "nothing was computed on numpy" in done.stderr
