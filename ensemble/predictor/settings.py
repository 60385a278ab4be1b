"""What scripts/serve.py can be told. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where the service listens, and how much it takes in one request."""

    ensemble: str = "???"
    """The folder of a fitted ensemble; its members must be where they were when it was fitted."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 for all of the machine's. There is no log-in: put a proxy before it."""
    port: int = 8000
    """The port to listen at; 0 for any that is free."""
    threads: int = 0
    """Threads of each member's process; 0 for as many cores as are granted."""
    max_reviews: int = 100_000
    """Reviews, and products, in one request; more are answered with 413."""
    max_bytes: int = 64 << 20
    """Size of one request's body; a longer one is answered with 413 and not read on."""
    body_timeout_s: int = 30
    """Seconds in which a request's body must have come; a slower one is answered with 408."""
    stop_timeout_s: int = 60
    """After SIGTERM, seconds in which requests under way may finish."""
