"""A linear classifier of handwritten digits, and the digits that each node has."""

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

FEATURES, CLASSES = 64, 10
DIGITS = load_digits()  # reading them takes as long as a round


def load_data(partition, partitions):
    """Return a node's digits, every `partitions`-th one; the last fifth of them is the test set."""
    x, y = DIGITS.data[partition::partitions] / 16, DIGITS.target[partition::partitions]
    cut = len(x) - len(x) // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]


def make_model(penalty, local_epochs):
    """Return a classifier of zeros for all classes; training continues from its parameters."""
    model = LogisticRegression(
        C=np.inf if penalty == "none" else 1.0, max_iter=local_epochs, warm_start=True
    )
    model.classes_ = np.arange(CLASSES)
    model.coef_ = np.zeros((CLASSES, FEATURES))
    model.intercept_ = np.zeros(CLASSES)
    return model


def get_params(model):
    """Return the parameters of a classifier as float64 arrays."""
    return [model.coef_, model.intercept_]


def set_params(model, params):
    """Copy arrays into the parameters of a classifier."""
    model.coef_, model.intercept_ = (param.copy() for param in params)


def fit(model, x, y):
    """Train for a few iterations, too few to converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
