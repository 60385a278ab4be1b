"""One forecast from those of all members: weights and calibration, fitted on the blend split.

    template, matrix = predictions.align(members_on_blend)
    ensemble = combine.fit(template.target, matrix, template.group, member_names)
    forecast = ensemble.predict(matrix_on_test, member_names)

scales.py has the calibrators, weights.py the combiners, selection.py the choice between them, fitting.py the ensemble,
baselines.py what it must beat, and diversity.py what tells a user which member to drop.
"""

from ensemble.combine.fitting import Ensemble, fit, fit_with_forecasts
from ensemble.combine.reference import base_rate_prediction, ranked_prediction

__all__ = ["Ensemble", "base_rate_prediction", "fit", "fit_with_forecasts", "ranked_prediction"]
