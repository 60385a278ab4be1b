"""Serve a fitted ensemble over HTTP, which needs pip install 'accelerate-ensemble[serve]'.

python scripts/serve.py ensemble=runs/demo/ensemble port=8000
curl -H 'content-type: application/json' -d @request.json http://127.0.0.1:8000/predict
"""

from ensemble import errors, recipe
from ensemble.predictor.settings import ServeConfig


def main() -> None:
    settings, _ = recipe.from_command_line(ServeConfig, __doc__)

    from ensemble.predictor import service

    service.serve(settings)


if __name__ == "__main__":
    errors.run(main)
