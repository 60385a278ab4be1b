"""The local ensemble transform Kalman filter.

Source: B. R. Hunt, E. J. Kostelich and I. Szunyogh, Physica D 230, 2007. Localisation: the weight of an observation falls
with its distance by the taper function of G. Gaspari and S. E. Cohn, Quarterly Journal of the Royal Meteorological Society
125, 1999, equation 4.10.
"""

from collections.abc import Sequence

import numpy as np

from ensemble.recipes.emulator.assimilation.models import Model
from ensemble.recipes.emulator.assimilation.twin import OBSERVATION_VARIANCE, Twin

TAPER_PER_RADIUS = (10 / 3) ** 0.5
"""Half the distance at which the taper becomes 0, divided by the radius. With this value the taper has the curvature of
exp(-½ (d / radius)²) at distance d = 0, as in the package DAPPER."""


def letkf(model: Model, twin: Twin, num_members: int, inflation: float, radius: float, seeds: Sequence[int]) -> np.ndarray:
    """The means of the analysed ensembles of T cycles, S experiments and N points, (T, S, N).

    inflation : factor by which the perturbations of the members are multiplied after each analysis
    radius : in points; at small distances d the weight of an observation falls as exp(-½ (d / radius)²)
    seeds : one for each experiment, which determines the first ensemble and the rotations
    """
    generators = [np.random.default_rng([2, seed]) for seed in seeds]
    num_points = twin.start.shape[-1]
    weights_NN = localisation(num_points, radius) / OBSERVATION_VARIANCE
    shape = (num_members, num_points)
    first = np.stack([generator.normal(0, OBSERVATION_VARIANCE**0.5, shape) for generator in generators])
    ensemble = twin.start[:, None] + first  # (S, members, N)
    analyses = np.empty_like(twin.observations)
    for time, observed in enumerate(twin.observations):
        ensemble = model.step(ensemble.reshape(-1, num_points)).reshape(ensemble.shape)
        mean = ensemble.mean(axis=1)
        mean, perturbations = transformed(mean, ensemble - mean[:, None], observed - mean, weights_NN)
        rotations = np.stack([rotation(num_members, generator) for generator in generators])
        ensemble = mean[:, None] + inflation * rotations @ perturbations
        analyses[time] = mean
    return analyses


def transformed(
    mean: np.ndarray, perturbations: np.ndarray, innovation: np.ndarray, weights_NN: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean (S, N) and the perturbations (S, members, N) of the analysis, from those of the forecast.

    Both are NaN for an experiment whose forecast is not finite.

    innovation : (S, N), observations minus the mean
    weights_NN : entry i, j is the inverse error variance of observation j in the analysis of point i
    """
    num_seeds, num_members, num_points = perturbations.shape
    products = (perturbations[:, :, None] * perturbations[:, None]).reshape(num_seeds, num_members**2, num_points)
    precision = (products @ weights_NN.T).reshape(num_seeds, num_members, num_members, num_points).transpose(0, 3, 1, 2)
    is_bad = ~np.isfinite(precision).all(axis=(1, 2, 3))  # eigh raises an error for these
    # (S, N, members), (S, N, members, members)
    values, vectors = np.linalg.eigh(np.where(is_bad[:, None, None, None], 0, precision))
    values = np.maximum(values, 0) + num_members - 1
    projected = ((perturbations * innovation[:, None]) @ weights_NN.T).transpose(0, 2, 1)  # (S, N, members)
    in_eigenvectors = (vectors.swapaxes(-1, -2) @ projected[..., None])[..., 0]
    mean_weights = (vectors @ (in_eigenvectors / values)[..., None])[..., 0]
    transform = (vectors * ((num_members - 1) / values[..., None, :]) ** 0.5) @ vectors.swapaxes(-1, -2)
    at_points = perturbations.transpose(0, 2, 1)[..., None, :]  # (S, N, 1, members)
    new_mean = mean + (at_points @ mean_weights[..., None])[..., 0, 0]
    new_perturbations = (at_points @ transform)[..., 0, :].transpose(0, 2, 1)
    new_mean[is_bad] = new_perturbations[is_bad] = np.nan
    return new_mean, new_perturbations


def localisation(num_points: int, radius: float) -> np.ndarray:
    """The weight of each observation in the analysis of each point of the ring, (N, N); 1 at distance 0."""
    difference = np.abs(np.arange(num_points)[:, None] - np.arange(num_points))
    distance = np.minimum(difference, num_points - difference)
    return taper(distance / (TAPER_PER_RADIUS * radius))


def taper(distances: np.ndarray) -> np.ndarray:
    """The fifth-order correlation function of Gaspari and Cohn; distances are in units in which it is 0 from 2 on."""
    near, far = np.minimum(distances, 1), np.clip(distances, 1, 2)
    inner = 1 - 5 / 3 * near**2 + 5 / 8 * near**3 + near**4 / 2 - near**5 / 4
    outer = 4 - 5 * far + 5 / 3 * far**2 + 5 / 8 * far**3 - far**4 / 2 + far**5 / 12 - 2 / (3 * far)
    return np.where(distances <= 1, inner, np.where(distances < 2, outer, 0.0))


def rotation(num_members: int, generator: np.random.Generator) -> np.ndarray:
    """A random orthogonal matrix (members, members) that does not change the mean of the members."""
    ones = np.full((num_members, 1), num_members**-0.5)
    basis = np.linalg.qr(np.hstack((ones, generator.normal(size=(num_members, num_members - 1)))))[0][:, 1:]
    inner, upper = np.linalg.qr(generator.normal(size=(num_members - 1, num_members - 1)))
    return ones @ ones.T + basis @ (inner * np.sign(np.diag(upper))) @ basis.T
