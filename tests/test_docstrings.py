"""What public functions say of themselves: what they raise, and examples that run."""

import doctest
import inspect
import types

import pytest

import tensorgraft as tg

NAMESPACES = {
    "tg": tg,
    "torch": tg.torch,
    "quantization": tg.quantization,
    "transforms": tg.transforms,
    "operators": tg.operators,
    "parallel": tg.parallel,
    "nn": tg.nn,
    "random": tg.random,
    "precision": tg.precision,
}

# tell what an object is, and have nothing to refuse
PREDICATES = {"transforms.is_array", "transforms.is_array_like", "transforms.if_array"} | {
    "transforms.is_inexact_array", "transforms.is_inexact_array_like", "transforms.tree_pformat",
    "transforms.tree_inference",
}  # fmt: skip

# those that a user meets first
WITH_EXAMPLES = [
    "tg.Backend", "tg.Module", "tg.autocast", "tg.device", "tg.eager", "tg.explain", "tg.from_backend_array",
    "tg.grad", "tg.graft", "tg.inplace_update", "tg.jit", "tg.load", "tg.scan", "tg.to_backend_array",
    "tg.value_and_grad", "tg.vmap", "torch.copy_counts", "torch.fallbacks", "torch.patches", "torch.set_fallback",
    "torch.tier_counts",
    "tg.dequantize", "tg.quantize", "tg.quantize_", "transforms.combine",
    "transforms.is_array", "transforms.partition", "random.key", "random.normal", "operators.diagonal",
    "operators.logdet", "operators.trace",
]  # fmt: skip


def public():
    """{name: object} of functions and classes, each by its first name."""
    found, seen = {}, set()
    for space, module in NAMESPACES.items():
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, types.ModuleType) and id(value) not in seen:
                seen.add(id(value))
                found[f"{space}.{name}"] = value
    return found


PUBLIC = public()


@pytest.mark.parametrize("name", [n for n, f in PUBLIC.items() if not inspect.isclass(f) and n not in PREDICATES])
def test_says_what_it_raises(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert "Raises" in text or "exceptions as of" in text.lower() or "exceptions are those of" in text, name


@pytest.mark.parametrize("name", [n for n, f in PUBLIC.items() if inspect.isclass(f)])
def test_classes_say_what_they_are(name):
    assert (vars(PUBLIC[name]).get("__doc__") or "").strip() and not PUBLIC[name].__doc__.startswith(name), name


@pytest.mark.parametrize("name", [n for n, f in PUBLIC.items() if ">>> " in (inspect.getdoc(f) or "")])
def test_examples(name):
    document = inspect.getdoc(PUBLIC[name])
    example = doctest.DocTestParser().get_doctest(document, {}, name, None, 0)
    outcome = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=outcome.append)
    assert not outcome, "".join(outcome)


def test_first_names_have_examples():
    missing = [n for n in WITH_EXAMPLES if ">>> " not in (inspect.getdoc(PUBLIC.get(n, tg)) or "")]
    assert not missing, missing
