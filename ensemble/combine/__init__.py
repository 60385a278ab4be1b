"""One prediction from those of all members: weights and calibration, fitted on the blend split.

    template, matrix = predictions.align(members_on_blend)
    ensemble = combine.fit(template.target, matrix, template.group, member_names)
    combined = ensemble.predict(matrix_on_test, member_names)

scales.py has the calibrators, weights.py the combiners, combination.py one fitted combination, selection.py the choice
between combinations, fitting.py the ensemble, reference.py the baselines for comparison, and diversity.py the measures of
what each member adds.
"""

from ensemble.combine.fitting import Ensemble, fit, fit_cross_fitted
from ensemble.combine.reference import base_rate_prediction, ranked_prediction

__all__ = ["Ensemble", "base_rate_prediction", "fit", "fit_cross_fitted", "ranked_prediction"]
