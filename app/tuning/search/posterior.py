"""Posterior over untried configs: a Gaussian process on log time, and the probability of a rejection."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, Final

import numpy as np

from app.tuning.search.encoding import Matrix, Rows

_STEPS: Final = 15  # up the posterior density at each fit, which goes on from where the last one ended
_MORE: Final = 1.1  # times what was learnt from, before hyperparameters are learnt again
_LESSONS: Final = 160  # measurements that hyperparameters are learnt from at most: it takes their number squared
_STRAY: Final = 0.3  # standard deviation of the log length scales
_AMPLITUDE: Final = (1e-2, 1e3)
_SCALE: Final = (0.1, 20.0)
# Variance of a measurement in parts of the log times': where it begins, and its bounds. A tenth of their deviation is
# a few per cent of a time; with more to spare, a process takes what it cannot explain for noise.
_NOISE: Final = (1e-3, (1e-5, 1e-2))
_RIDGE: Final = 1e-2  # columns are of size one, and so are their slopes
# A process takes its hyperparameters for certain and its parameters for smooth; so its deviations are too small.
_WIDER: Final = 1.5
_TREES: Final = 100
_DOUBT: Final = 0.5 / _TREES  # the least chance that a config is given: half a vote


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and standard deviation of log time for each of some configs."""

    mean: Matrix
    deviation: Matrix

    def improvement(self, best: float) -> Matrix:
        """Expected improvement on a log time (Jones, Schonlau and Welch, Journal of Global Optimization, 1998)."""
        from scipy.special import ndtr  # noqa: PLC0415 - it takes a second to load

        deviation = np.maximum(self.deviation, 1e-9)
        z = (best - self.mean) / deviation
        density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        return np.asarray(deviation * (z * ndtr(z) + density))


class GaussianProcess:
    """A Gaussian process (Matern 3/2) whose hyperparameters are kept from fit to fit.

    `ties` [columns, scales] says which free log scales add up to a column's. Of the first `alike` of them the
    deviations from their mean are taken for normal: a few measurements do not switch a parameter off, as they do where
    the likelihood alone decides on as many scales as there are parameters.
    """

    def __init__(self, ties: Matrix, alike: int) -> None:
        from sklearn.gaussian_process import kernels  # noqa: PLC0415 - it takes a second to load

        columns, scales = ties.shape
        self._alike = slice(1, 1 + alike)
        self._kernel = kernels.ConstantKernel(1.0) * kernels.Matern(np.ones(columns), nu=1.5) + kernels.WhiteKernel()
        self._ties = np.zeros((columns + 2, scales + 2))
        self._ties[0, 0] = self._ties[-1, -1] = 1.0
        self._ties[1:-1, 1:-1] = ties
        self._free = np.array([0.0, *np.zeros(scales), log(_NOISE[0])])
        self._bounds = np.log([_AMPLITUDE, *[_SCALE] * scales, _NOISE[1]])
        self._learnt_from = 0
        self._fitted: Any = None
        self._centre, self._spread = 0.0, 1.0

    def fit(self, points: Matrix, logs: Matrix) -> None:
        """Condition on measured points; hyperparameters are learnt again once there is a tenth more to learn from."""
        self._centre, self._spread = float(logs.mean()), max(float(logs.std()), 1e-6)
        targets = (logs - self._centre) / self._spread
        if len(logs) >= _MORE * self._learnt_from:
            self._learnt_from = len(logs)
            lessons = _training_subset(targets)
            self._free = self._likeliest(self._conditioned(points[lessons], targets[lessons]))
        self._fitted = self._conditioned(points, targets)

    def predict(self, points: Matrix) -> Posterior:
        """The posterior at points."""
        mean, deviation = self._fitted.predict(points, return_std=True)
        return Posterior(mean * self._spread + self._centre, _WIDER * deviation * self._spread)

    def predict_joint(self, points: Matrix) -> tuple[Matrix, Matrix]:
        """Means of the points' log times, and their covariance."""
        mean, covariance = self._fitted.predict(points, return_cov=True)
        return mean * self._spread + self._centre, covariance * (_WIDER * self._spread) ** 2

    def _conditioned(self, points: Matrix, targets: Matrix) -> Any:
        from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: PLC0415 - it takes a second to load

        kernel = self._kernel.clone_with_theta(self._ties @ self._free)
        return GaussianProcessRegressor(kernel, alpha=1e-8, optimizer=None).fit(points, targets)

    def _likeliest(self, fitted: Any) -> Matrix:
        """Free log hyperparameters some steps up their posterior density."""
        from scipy.optimize import minimize  # noqa: PLC0415 - it takes a second to load

        def loss(free: Matrix) -> tuple[float, Matrix]:
            value, gradient = fitted.log_marginal_likelihood(self._ties @ free, eval_gradient=True, clone_kernel=False)
            alike = free[self._alike]
            strays = alike - alike.sum() / max(len(alike), 1)
            slope = -(self._ties.T @ gradient)
            slope[self._alike] += strays / _STRAY**2
            return float(strays @ strays) / (2 * _STRAY**2) - value, slope

        found = minimize(
            loss, self._free, jac=True, method="L-BFGS-B", bounds=self._bounds, options={"maxiter": _STEPS}
        )
        return np.asarray(found.x)


def _training_subset(targets: Matrix) -> Rows:
    """The rows from which hyperparameters are learnt: all, or if they are many the fastest and some of the others."""
    order = np.argsort(targets, kind="stable")
    half = _LESSONS // 2
    if len(order) <= _LESSONS:
        return np.arange(len(order))
    return np.concatenate([order[:half], order[np.linspace(half, len(order) - 1, half).astype(np.intp)]])


class LinearTrend:
    """A linear regression of log time, to whose residuals a Gaussian process is fitted."""

    def __init__(self, columns: Matrix, logs: Matrix) -> None:
        from sklearn.linear_model import Ridge  # noqa: PLC0415 - it takes a second to load

        self._line = Ridge(_RIDGE, positive=True).fit(columns, logs)

    def at(self, columns: Matrix) -> Matrix:
        """The trend's log times."""
        return np.asarray(self._line.predict(columns))


def imputed(points: Matrix, logs: Matrix, missing: Matrix, seed: int) -> Matrix:
    """Log times of missing points by extremely randomised trees (Geurts et al., Machine Learning, 2006)."""
    return _tree_means(points, logs, missing, seed)


def feasibility(tried: Matrix, held: Matrix, points: Matrix, seed: int) -> Matrix:
    """The chance of each point not to be rejected, learnt from tried ones: `held` [tried] is 1 for a measured one."""
    return np.asarray(np.maximum(_tree_means(tried, held, points, seed), _DOUBT))


def _tree_means(points: Matrix, targets: Matrix, asked: Matrix, seed: int) -> Matrix:
    """The mean prediction of extremely randomised trees for points.

    These are the trees of sklearn's ExtraTreesRegressor. A hundred small ones take it a fifth of a second, three
    quarters of which it spends on copying and checking their parameters. Of targets 0 and 1 the least squares that a
    split leaves are their Gini impurity, and the means are probabilities.
    """
    from sklearn import config_context  # noqa: PLC0415 - it takes a second to load
    from sklearn.tree import ExtraTreeRegressor  # noqa: PLC0415 - it takes a second to load

    random = np.random.default_rng(seed)
    narrow, places = np.asarray(points, np.float32), np.asarray(asked, np.float32)
    values = np.ascontiguousarray(targets, np.float64)
    total = np.zeros(len(places))
    with config_context(skip_parameter_validation=True):
        for one in random.integers(2**31, size=_TREES):
            tree = ExtraTreeRegressor(max_features=None, random_state=int(one))
            total += tree.fit(narrow, values, check_input=False).predict(places, check_input=False)
    return np.asarray(total / _TREES)
