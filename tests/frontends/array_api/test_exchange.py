"""Arrays from and to other libraries and backends: values, memory that is shared, memory that must not be."""

from __future__ import annotations

import array
import copy
import gc
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.frontends.array_api.conftest import BACKENDS

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.frontends.array_api.core import devices
from tensorgraft.frontends.array_api.core.promotion import NARROW, STANDARD
from tensorgraft.hub import registry

MUTABLE = [name for name in BACKENDS if registry.backend_class(name).mutable]
PAIRS = [(a, b) for a in BACKENDS for b in BACKENDS if a != b]


@pytest.mark.parametrize("dtype", [*STANDARD, *NARROW])
def test_every_dtype_goes_everywhere(device: str, dtype: np.dtype) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    for other in BACKENDS:
        x = xp.asarray(values, device=device, copy=True)
        y = x.T.to_device(other)
        assert (y.device, y.dtype, y.shape) == (other, dtype, (3, 2))
        np.testing.assert_array_equal(np.asarray(y), values.T)
        if other != device:
            y[0, 0] = True  # a copy
            assert not np.asarray(x)[0, 0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, np.asarray(True)),
        (3, np.asarray(3)),
        (2.5, np.asarray(2.5)),
        (1j, np.asarray(1j)),
        ([], np.zeros(0)),
        ([[1, 2], [3, 4]], np.asarray([[1, 2], [3, 4]])),
        ([True, 2, 3.5], np.asarray([1, 2, 3.5])),
        ((np.float32(1), np.float32(2)), np.asarray([1, 2], np.float32)),
        (range(3), np.arange(3)),
        (memoryview(bytearray(b"abc")), np.frombuffer(b"abc", np.uint8)),
        (array.array("d", [1, 2]), np.asarray([1.0, 2.0])),
        (np.int16(7), np.asarray(7, np.int16)),
        (np.arange(6).reshape(2, 3)[:, ::-1], np.arange(6).reshape(2, 3)[:, ::-1]),
        (np.asarray([1, 2], ml_dtypes.bfloat16), np.asarray([1, 2], ml_dtypes.bfloat16)),
    ],
)
def test_asarray(device: str, given: Any, expected: np.ndarray) -> None:
    x = xp.asarray(given)
    assert (x.dtype, x.shape, x.device) == (expected.dtype, expected.shape, device)
    np.testing.assert_array_equal(np.asarray(x), expected)
    as_complex = xp.asarray(given, dtype=xp.complex64)
    np.testing.assert_array_equal(np.asarray(as_complex), expected.astype(np.complex64))


def test_sequences_of_arrays(device: str) -> None:
    x = xp.asarray([xp.asarray(1), xp.asarray(2.0, dtype=xp.float64)][1:])
    assert x.tolist() == [2.0] and x.device == device
    assert xp.asarray([[xp.asarray(1), 2], [3, xp.asarray(4)]]).tolist() == [[1, 2], [3, 4]]
    assert xp.asarray([xp.ones(2), xp.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    with pytest.raises(ValueError, match="different lengths"):
        xp.asarray([xp.ones(2), xp.zeros(3)])


@pytest.mark.parametrize("given", ["text", object(), None, {"a": 1}, [None], ["a"]])
def test_what_is_no_array(given: Any) -> None:
    with pytest.raises(TypeError, match="asarray"):
        xp.asarray(given)


def test_copies(device: str) -> None:
    x = xp.arange(3)
    assert xp.asarray(x) is x and xp.asarray(x, copy=False) is x
    y = xp.asarray(x, copy=True)
    y[0] = 7
    assert x.tolist() == [0, 1, 2]
    for call in (lambda: xp.asarray([1], copy=False), lambda: xp.asarray(x, dtype=xp.float32, copy=False)):
        with pytest.raises(ValueError, match="copy"):
            call()


def test_memory_of_numpy_is_shared() -> None:
    values = np.zeros((4, 6), np.float32)
    for part in (values, values[::2, 1:5:2], values.T, values[::-1, ::-1], values[1, 2:3]):
        x = xp.asarray(part, device="numpy")
        x += 1
        np.testing.assert_array_equal(np.asarray(x), part)
        assert np.shares_memory(x.native, values)
    assert values.max() == 4
    frozen = np.arange(3)
    frozen.flags.writeable = False
    x = xp.asarray(frozen, device="numpy")
    x[0] = 7
    assert frozen[0] == 0
    with pytest.raises(ValueError, match="cannot be written"):
        xp.asarray(frozen, device="numpy", copy=False)


@pytest.mark.parametrize("source", BACKENDS)
@pytest.mark.parametrize("copying", [None, True])
def test_native_arrays(source: str, copying: bool | None) -> None:
    native = xp.reshape(xp.arange(6.0, device=source), (2, 3))[:, 1:].native
    for make in (xp.asarray, xp.from_dlpack):
        if source == "numpy" and make is xp.asarray:
            continue  # NumPy's arrays go to the default device
        x = make(native, copy=copying)
        assert (x.device, x.tolist()) == (source, [[1, 2], [4, 5]])
        x[0, 0] = -1.0
        shared = source in MUTABLE and not copying
        assert float(xp.asarray(native, device=source)[0, 0]) == (-1 if shared else 1)
        native = xp.reshape(xp.arange(6.0, device=source), (2, 3))[:, 1:].native


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_memory_is_shared_only_between_those_that_write(source: str, target: str) -> None:
    x = xp.arange(4.0, device=source)
    for given in (x, x.native):
        y = xp.from_dlpack(given, device=target)
        assert (y.device, y.tolist()) == (target, [0, 1, 2, 3])
        x[0] = 9.0
        assert float(y[0]) == (9 if source in MUTABLE and target in MUTABLE else 0)
        x[0] = 0.0
        y[1] = 5.0
        assert float(x[1]) == (5 if source in MUTABLE and target in MUTABLE else 1)
        x[1] = 1.0
    if source in MUTABLE and target not in MUTABLE:
        with pytest.raises(ValueError, match="copy=False"):
            xp.from_dlpack(x.native, device=target, copy=False)


def test_native_is_what_is_inside(device: str) -> None:
    x = xp.reshape(xp.arange(6), (2, 3))
    backend = registry.get(device)
    with backend.scope():
        assert backend.is_array(x.native) and backend.is_array(x.T.native)
        np.testing.assert_array_equal(backend.to_numpy(x.T.native), np.arange(6).reshape(2, 3).T)
    kept = x[0].native
    x[0] = 7
    with backend.scope():
        assert backend.to_numpy(kept).tolist() == ([7, 7, 7] if device in MUTABLE else [0, 1, 2])


def test_dlpack_out(device: str) -> None:
    x = xp.reshape(xp.arange(6.0), (2, 3))
    np.testing.assert_array_equal(np.from_dlpack(x), np.asarray(x))
    np.testing.assert_array_equal(np.from_dlpack(x.T), np.asarray(x).T)
    own = np.from_dlpack(x, copy=True)
    own[0, 0] = 5
    assert float(x[0, 0]) == 0
    assert x.__dlpack_device__()[0] == 1
    for max_version in (None, (0, 0), (1, 0)):
        assert type(x.__dlpack__(max_version=max_version, dl_device=(1, 0))).__name__ == "PyCapsule"


def test_numpys_protocol(device: str) -> None:
    x = xp.asarray([1.5, 2.5])
    assert np.asarray(x).dtype == np.float64 and np.asarray(x, np.float32).dtype == np.float32
    assert np.array(x).flags.writeable
    assert np.mean(np.asarray(x)) == 2.0


def test_pickles_and_copies(device: str) -> None:
    x = xp.reshape(xp.arange(6.0), (2, 3))[:, ::2]
    for made in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert (made.tolist(), made.dtype, made.device) == (x.tolist(), x.dtype, device)
        made[0, 0] = -1.0
        assert float(x[0, 0]) == 0


def test_shown(device: str) -> None:
    assert repr(xp.asarray([1, 2])) == f"Array([1, 2], dtype=int64, device={device!r})"
    with pytest.raises(TypeError, match="unhashable"):
        hash(xp.ones(1))


def test_devices() -> None:
    info = xp.__array_namespace_info__()
    assert set(BACKENDS) <= {str(d) for d in info.devices()}
    x = xp.ones(1, device="numpy")
    assert x.device == "numpy" and hash(x.device) == hash("numpy") and pickle.loads(pickle.dumps(x.device)) == "numpy"
    assert xp.zeros(1, device=x.device).device is x.device and x.to_device("numpy:0") is x
    assert info.default_dtypes()["real floating"] == xp.float64
    assert info.dtypes(kind="integral").keys() == {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}
    assert x.__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ValueError, match=r"not '1999\.12'"):
        x.__array_namespace__(api_version="1999.12")


def test_torch_devices_are_taken() -> None:
    pytest.importorskip("torch")
    assert xp.ones(1, device=tg.device("numpy")).device == "numpy"


def test_import_is_light() -> None:
    import subprocess
    import sys

    program = (
        "import sys, tensorgraft as tg, tensorgraft.array_api as xp; tg.set_default_device('numpy');"
        "xp.sum(xp.asarray([1.0, 2.0]) + 1);"
        "sys.exit(' '.join({'jax', 'torch', 'tensorflow'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_transforms_that_end_leave_no_device_behind() -> None:
    """Backends of transforms come and go: the next one may have the address of the last, on another device."""
    x = xp.ones((3,), dtype=xp.float64, device="numpy")
    before, seen = len(devices._of_backend), []

    def loss(x: Any) -> Any:
        seen.append(x.device)
        return xp.sum(x)

    tg.jvp(loss, (x,), (x,))
    gc.collect()
    assert seen == ["numpy"]
    assert len(devices._of_backend) == before


def test_negative_strides_are_exported_by_a_copy(device: str) -> None:
    """Importers need not take them, and some end the process over them: the rule is the same on every backend."""
    x = xp.arange(4.0)[::-1]
    assert x.strides == (-8,)
    seen = np.from_dlpack(x)
    assert seen.strides == (8,)
    np.testing.assert_array_equal(seen, [3, 2, 1, 0])
    seen = np.array(seen)
    seen[0] = 9
    assert x.tolist() == [3, 2, 1, 0]
    with pytest.raises(BufferError, match="negative strides"):
        x.__dlpack__(copy=False)
    np.testing.assert_array_equal(np.from_dlpack(xp.reshape(xp.arange(6), (2, 3))[:, ::2]), [[0, 2], [3, 5]])


def test_memory_that_is_not_aligned_is_copied(device: str) -> None:
    values = np.zeros(17, np.uint8)[1:].view(np.float64)
    assert not values.flags.aligned
    x = xp.asarray(values, device="numpy")
    x[0] = 1.0
    assert np.from_dlpack(x).flags.aligned and values[0] == 0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_dtypes_that_no_array_has(device: str, dtype: str) -> None:
    values = np.ones(2, np.float32).astype(getattr(ml_dtypes, dtype))
    for source in BACKENDS:
        backend = registry.get(source)
        with backend.scope():
            try:
                native = backend.asarray(values)
            except (NotImplementedError, KeyError, TypeError):  # which the framework has not
                continue
        for make in (xp.from_dlpack, xp.asarray):
            for target in (None, device):
                with pytest.raises(TypeError, match="not a dtype of the standard"):
                    make(native, device=target)
