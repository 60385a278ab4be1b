"""The forecast of candidates: the items of each user with the highest predictions, with their ids in the raw data."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.predictor.forecast import Forecast


def forecast_table(forecast: Forecast) -> pa.Table:
    """A row for each of the best items of each user, with its rank from 1 on, the ids and the ensemble's prediction."""
    order, data = forecast.order, forecast.data
    rows = open_table(data / "rows" / FORECAST)
    item = rows["item"].take(pc.index_in(pa.array(forecast.template.row_id[order]), rows["row_id"])).to_numpy()
    group = forecast.template.group[order]
    return pa.table(
        {
            "rank": 1 + np.arange(len(group)) - np.searchsorted(group, group),
            "user_id": open_table(data / "users")["user_id"].take(forecast.template.cluster[order]),
            "item_id": open_table(data / "items")["item_id"].take(item - 1),
            "prediction": forecast.prediction[order],
        }
    )
