"""scikit-learn with `array_api_dispatch`: estimators, transformers and metrics on arrays as they are."""

import numpy as np
import sklearn
from sklearn import metrics
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import euclidean_distances, polynomial_kernel, rbf_kernel
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import (
    Binarizer,
    KernelCenterer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)


def dispatched(function):
    def call(*arrays):
        with sklearn.config_context(array_api_dispatch=True):
            return function(*arrays)

    return call


def cases():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    t = x @ np.asarray([1.0, 2.0, 3.0]) + 0.1
    y = (x[:, 0] > 0).astype(np.int64)
    z = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    p = 1 / (1 + np.exp(-x[:, 0] - 0.3 * x[:, 1]))
    scalers = {
        type(s).__name__: (lambda x, s=s: sklearn.clone(s).fit(x).transform(x), (x,))
        for s in (MinMaxScaler(), StandardScaler(), MaxAbsScaler(), Normalizer(), Binarizer(), PolynomialFeatures(2))
    }
    classification = {
        f.__name__: (f, (y, z))
        for f in (
            metrics.accuracy_score,
            metrics.balanced_accuracy_score,
            metrics.f1_score,
            metrics.precision_score,
            metrics.recall_score,
            metrics.jaccard_score,
            metrics.zero_one_loss,
            metrics.hamming_loss,
            metrics.confusion_matrix,
            metrics.cohen_kappa_score,
        )
    }
    regression = {
        f.__name__: (f, (t, t + x[:, 0]))
        for f in (
            metrics.r2_score,
            metrics.mean_squared_error,
            metrics.mean_absolute_error,
            metrics.explained_variance_score,
            metrics.max_error,
            metrics.mean_pinball_loss,
            metrics.d2_absolute_error_score,
        )
    }
    ranked = {f.__name__: (f, (y, p)) for f in (metrics.log_loss, metrics.brier_score_loss)}
    pairs = {f.__name__: (f, (x,)) for f in (euclidean_distances, rbf_kernel, polynomial_kernel)}
    models = {
        "PCA": (lambda x: PCA(2, svd_solver="full").fit(x).explained_variance_, (x,)),
        "Ridge": (lambda x, t: Ridge(solver="svd").fit(x, t).predict(x), (x, t)),
        "LDA": (lambda x, y: LinearDiscriminantAnalysis().fit(x, y).predict_proba(x), (x, y)),
        "GaussianNB": (lambda x, y: GaussianNB().fit(x, y).predict_log_proba(x), (x, y)),
        "GaussianMixture": (
            lambda x: GaussianMixture(2, init_params="random_from_data", random_state=0).fit(x).means_,
            (x,),
        ),
        "KernelCenterer": (lambda x: KernelCenterer().fit_transform(x @ x.T), (x,)),
        "Nystroem": (lambda x: Nystroem(n_components=5, random_state=0).fit(x).transform(x), (x,)),
    }
    every = {**scalers, **classification, **regression, **ranked, **pairs, **models}
    return {name: (dispatched(f), arguments) for name, (f, arguments) in every.items()}
