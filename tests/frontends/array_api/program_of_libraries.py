"""SciPy, scikit-learn, array-api-extra, einops and, where it is installed, xarray on arrays of a backend, compared with
what they give for NumPy's: `python ... jax`.

A program of its own: SciPy looks at SCIPY_ARRAY_API when it is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import einops.array_api
import numpy as np
import scipy.fft
import scipy.integrate
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.special
import scipy.stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.externals import array_api_extra as xpx
from sklearn.linear_model import Ridge
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, r2_score
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import tensorgraft as tg
import tensorgraft.array_api as xp

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
T = X @ np.asarray([1.0, 2.0, 3.0]) + 0.1
Y = (X[:, 0] > 0).astype(np.int64)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "scipy zscore": lambda x, t, y: scipy.stats.zscore(x),
    "scipy skew": lambda x, t, y: scipy.stats.skew(x, axis=1),
    "scipy t-test": lambda x, t, y: tuple(scipy.stats.ttest_1samp(t, 0.0))[:2],
    "scipy pearsonr": lambda x, t, y: scipy.stats.pearsonr(x[:, 0], t).statistic,
    "scipy logsumexp": lambda x, t, y: scipy.special.logsumexp(x, axis=0),
    "scipy erf": lambda x, t, y: scipy.special.erf(x),
    "scipy fft": lambda x, t, y: scipy.fft.rfft2(x),
    "scipy hilbert": lambda x, t, y: scipy.signal.hilbert(t),
    "scipy fftconvolve": lambda x, t, y: scipy.signal.fftconvolve(t, x[:, 1]),
    "scipy gaussian_filter": lambda x, t, y: scipy.ndimage.gaussian_filter(x, sigma=1.0),
    "scipy trapezoid": lambda x, t, y: scipy.integrate.cumulative_trapezoid(t),
    "scipy rosen": lambda x, t, y: scipy.optimize.rosen(t),
    "sklearn PCA": lambda x, t, y: PCA(2, svd_solver="full").fit_transform(x),
    "sklearn Ridge": lambda x, t, y: Ridge(solver="svd").fit(x, t).predict(x),
    "sklearn scalers": lambda x, t, y: MinMaxScaler().fit_transform(StandardScaler().fit_transform(x)),
    "sklearn LDA": lambda x, t, y: LinearDiscriminantAnalysis().fit(x, y).predict_proba(x),
    "sklearn mixture": lambda x, t, y: GaussianMixture(2, init_params="random_from_data", random_state=0).fit(x).means_,
    "sklearn distances": lambda x, t, y: euclidean_distances(x),
    "sklearn r2": lambda x, t, y: r2_score(t, t + x[:, 0]),
    "sklearn balanced accuracy": lambda x, t, y: balanced_accuracy_score(y, 1 - y[::-1]),
    "sklearn metric, no dispatch": lambda x, t, y: undispatched(brier_score_loss, y, abs(t) / 20),
    "extra kron, cov": lambda x, t, y: (xpx.kron(x[:2], x[:2]), xpx.cov(x)),
    "extra one_hot, at": lambda x, t, y: (xpx.one_hot(y, 2), xpx.at(x, 0).set(1.0, copy=True)),
    "einops rearrange": lambda x, t, y: einops.array_api.rearrange(x, "(a b) c -> b (c a)", a=4),
    "einops reduce": lambda x, t, y: einops.array_api.reduce(x, "(a b) c -> a c", "max", a=8),
    "einops repeat": lambda x, t, y: einops.array_api.repeat(x, "a b -> a new b", new=2),
}


def undispatched(metric: Callable[..., Any], *arrays: Any) -> float:
    with sklearn.config_context(array_api_dispatch=False):
        return float(metric(*arrays))


def labelled(a: Any) -> Any:
    import xarray as xr

    return xr.DataArray(a, dims=("row", "column"), coords={"row": list(range(a.shape[0]))})


if importlib.util.find_spec("xarray"):
    PROGRAMS |= {
        "xarray reductions": lambda x, t, y: tuple(
            getattr(labelled(x), name)(*axis).data
            for name in ("sum", "mean", "std", "var", "max", "min", "median", "prod", "count", "cumsum")
            for axis in (("row",), ())
            if axis or name != "cumsum"
        ),
        "xarray reductions, NaN": lambda x, t, y: tuple(
            getattr(labelled(x).where(labelled(x) > 0), name)("row").data
            for name in ("sum", "mean", "std", "max", "count")
        ),
        "xarray operators": lambda x, t, y: (2.0 * np.sin(labelled(x)) + np.float32(1) - labelled(x).mean("row")).data,
        "xarray indexing": lambda x, t, y: labelled(x).sel(row=[3, 1]).transpose("column", "row").data,
    }
# a second or two each where every shape is compiled
SLOW = {"scipy t-test", "sklearn LDA", "sklearn PCA", "sklearn mixture"}


def same(found: Any, expected: Any, device: str) -> None:
    if isinstance(expected, tuple):
        for a, b in zip(found, expected, strict=True):
            same(a, b, device)
        return
    if not isinstance(found, float):
        assert isinstance(found, xp.Array), f"a {type(found).__qualname__}"
        assert found.device == device, f"on {found.device}"
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6, atol=1e-9)


def main(device: str) -> int:
    tg.set_default_device(device)
    arrays = [xp.asarray(v, copy=True) for v in (X, T, Y)]
    failed = 0
    for name, program in PROGRAMS.items():
        if name in SLOW and device in ("jax", "tensorflow"):
            continue
        expected = program(X.copy(), T, Y)
        try:
            with sklearn.config_context(array_api_dispatch=True):
                same(program(*arrays), expected, device)
        except Exception as error:
            print(f"{name} on {device}: {type(error).__name__}: {error}")
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
