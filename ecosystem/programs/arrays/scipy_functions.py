"""SciPy with SCIPY_ARRAY_API=1: special functions, statistics, signals, transforms, distances."""

import numpy as np
import scipy.cluster.vq
import scipy.differentiate
import scipy.fft
import scipy.integrate
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.spatial.transform
import scipy.special
import scipy.stats


def cases():
    x = np.random.default_rng(0).normal(size=(40, 3))
    t = x @ np.asarray([1.0, 2.0, 3.0]) + 0.1
    positive = np.abs(x) + 0.1
    return {
        "zscore": (lambda x: scipy.stats.zscore(x), (x,)),
        "skew, kurtosis": (lambda x: [scipy.stats.skew(x, axis=1), scipy.stats.kurtosis(x)], (x,)),
        "moments": (lambda x: [scipy.stats.moment(x, 3), scipy.stats.variation(x), scipy.stats.sem(x)], (x,)),
        "ttest_1samp": (lambda t: tuple(scipy.stats.ttest_1samp(t, 0.0))[:2], (t,)),
        "pearsonr": (lambda x, t: scipy.stats.pearsonr(x[:, 0], t).statistic, (x, t)),
        "entropy": (lambda p: scipy.stats.entropy(p), (positive,)),
        "gmean, hmean": (lambda p: [scipy.stats.gmean(p), scipy.stats.hmean(p)], (positive,)),
        "logsumexp": (lambda x: scipy.special.logsumexp(x, axis=0), (x,)),
        "softmax": (lambda x: scipy.special.softmax(x, axis=1), (x,)),
        "erf, ndtr, expit": (lambda x: [getattr(scipy.special, f)(x) for f in ("erf", "ndtr", "expit")], (x,)),
        "gammaln": (lambda p: scipy.special.gammaln(p), (positive,)),
        "rfft2": (lambda x: scipy.fft.rfft2(x), (x,)),
        "hilbert": (lambda t: scipy.signal.hilbert(t), (t,)),
        "fftconvolve": (lambda x, t: scipy.signal.fftconvolve(t, x[:, 1]), (x, t)),
        "gaussian_filter": (lambda x: scipy.ndimage.gaussian_filter(x, sigma=1.0), (x,)),
        "cumulative_trapezoid": (lambda t: scipy.integrate.cumulative_trapezoid(t), (t,)),
        "simpson": (lambda t: scipy.integrate.simpson(t), (t,)),
        "rosen": (lambda t: scipy.optimize.rosen(t), (t,)),
        "derivative": (lambda t: scipy.differentiate.derivative(lambda v: v * v * v, t).df, (t,)),
        "vq": (lambda x: scipy.cluster.vq.vq(x, x[:4, :])[0], (x,)),
    }
