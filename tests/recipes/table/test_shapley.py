"""Contributions of features by sampling."""

import numpy as np

from ensemble.recipes.table import shapley

ROWS = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
REFERENCES = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)


def of_products(features: np.ndarray) -> np.ndarray:
    """Two outputs with interactions."""
    return np.stack([features.prod(axis=1), np.sin(features[:, 0] * features[:, 3])], axis=1)


def test_of_a_linear_model_they_are_exact() -> None:
    """Contributions would go to another feature, or be of another size."""
    slopes = np.array([1.0, -2.0, 0.0, 0.5, 3.0])
    contributions = shapley.values(lambda features: features @ slopes, ROWS, REFERENCES)
    np.testing.assert_allclose(contributions[..., 0], slopes * (ROWS - REFERENCES.mean(axis=0)), atol=1e-6)


def test_they_sum_to_the_prediction() -> None:
    """With interactions, a part of the prediction would not be assigned to any feature."""
    contributions = shapley.values(of_products, ROWS, REFERENCES)
    np.testing.assert_allclose(
        contributions.sum(axis=1), of_products(ROWS) - of_products(REFERENCES).mean(axis=0), atol=1e-6
    )


def test_a_row_does_not_depend_on_the_others() -> None:
    """A row would have other reasons in another file."""
    contributions = shapley.values(of_products, ROWS, REFERENCES)
    np.testing.assert_array_equal(shapley.values(of_products, ROWS[3:4], REFERENCES), contributions[3:4])
