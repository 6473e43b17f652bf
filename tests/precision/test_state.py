"""`tg.autocast` as a region of a thread, and the policies that are in force."""

import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import tensorgraft as tg
from tensorgraft import precision
from tensorgraft.hub import dtypes

BF16, F16 = dtypes.bfloat16, dtypes.float16


def now():
    region = precision.current()
    return None if region is None else (region.policy, region.dtype)


def test_regions_nest_and_are_left():
    assert now() is None
    with tg.autocast("bfloat16") as region:
        assert region == precision.current() and now() == ("cuda", BF16)
        with tg.autocast():  # goes on with the dtype around it, as torch.autocast does
            assert now() == ("cuda", BF16)
        with tg.autocast("float16", policy="xla"):
            assert now() == ("xla", F16)
            with tg.autocast(enabled=False):
                assert now() is None and precision.policy() == "xla"
                with tg.autocast():
                    assert now() == ("xla", F16)
        assert now() == ("cuda", BF16)
    assert now() is None and precision.policy() == "cuda"


@pytest.mark.parametrize(("policy", "dtype"), [("cuda", F16), ("cpu", BF16), ("xla", BF16)])
def test_default_dtypes(policy, dtype):
    with tg.autocast(policy=policy):
        assert now() == (policy, dtype)
    with tg.autocast_policy(policy), tg.autocast():
        assert now() == (policy, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_dtypes_of_any_framework(dtype):
    with tg.autocast(dtype):
        assert now() == ("cuda", BF16)


def test_dtypes_of_torch_and_jax():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    for dtype in (torch.bfloat16, jnp.bfloat16, jnp.dtype("bfloat16")):
        with tg.autocast(dtype):
            assert now() == ("cuda", BF16)


def test_left_by_an_exception():
    with pytest.raises(ZeroDivisionError), tg.autocast("bfloat16", policy="cpu"):
        raise ZeroDivisionError
    assert now() is None and precision.policy() == "cuda"


def test_decorator_enters_anew_at_every_call():
    @tg.autocast("bfloat16")
    def factorial(n):
        """Recursive."""
        assert now() == ("cuda", BF16)
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(4) == 24 and now() is None
    assert factorial.__doc__ == "Recursive."


def test_each_thread_has_its_own():
    seen = []

    def run():
        seen.append((now(), precision.policy()))
        with tg.autocast("float16", policy="xla"):
            seen.append((now(), precision.policy()))

    with tg.autocast("bfloat16", policy="cpu"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert now() == ("cpu", BF16)
    assert seen == [(None, "cuda"), (("xla", F16), "xla")]


def test_policy_of_the_process():
    try:
        tg.autocast_policy("cpu")
        assert precision.policy() == "cpu"
        with tg.autocast_policy("xla") as name:
            assert name == precision.policy() == "xla"
        assert precision.policy() == "cpu"
    finally:
        tg.autocast_policy("cuda")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
def test_an_ineligible_dtype_warns_and_disables(dtype):
    with pytest.warns(UserWarning, match="the target dtype is not supported. Disabling autocast"):
        region = tg.autocast(dtype)
    with region:
        assert precision.current() is None
    tg.autocast(dtype, enabled=False)  # nothing to warn of


def test_bad_arguments():
    for make in (tg.autocast_policy, lambda name: tg.autocast(policy=name)):
        with pytest.raises(ValueError, match="unknown autocast policy 'gpu': expected one of 'cuda', 'cpu', 'xla'"):
            make("gpu")
    with pytest.raises(TypeError, match=r"expects a dtype .*, got <function .*needs parentheses"):

        @tg.autocast
        def wrong():
            pass

    with pytest.raises(TypeError, match="expects a function, got a int"):
        tg.autocast("bfloat16")(3)
    assert precision.policy() == "cuda"


def test_no_framework_is_imported_for_it():
    program = (
        "import sys, tensorgraft as tg\nwith tg.autocast('bfloat16'): pass\n"
        "sys.exit(' '.join(m for m in ('torch', 'jax', 'tensorflow') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_operator_without_a_row_in_a_region_s_policy_is_cast_by_what_it_is_made_of():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 2, device=tg.device("numpy"))
    with tg.autocast("bfloat16", policy="cpu"):  # `einsum` has a row in the table of the default, "cuda"
        assert torch.einsum("ij,jk->ik", x, x.double().float()).dtype is torch.bfloat16
        assert torch.einsum("ij,jk->ik", x @ x, x).dtype is torch.bfloat16
