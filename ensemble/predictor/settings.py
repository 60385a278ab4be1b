"""Settings of scripts/serve.py. No large library is imported here, so that `--help` is fast."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The address of the service, and the limits of a request."""

    ensemble: str = "???"
    """The folder of a fitted ensemble; its members must be at the same paths, relative to it, as when it was fitted."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all addresses of the machine. There is no authentication: put a
    proxy in front of the service."""
    port: int = 8000
    """The port to listen on; 0 for any free port."""
    threads: int = 0
    """Threads of each member's process; 0 for as many cores as are granted, or outside of Slurm OMP_NUM_THREADS if that is
    less."""
    max_reviews: int = 100_000
    """Largest number of reviews, of products, or of rows of a table in one request; a larger one gets status 413."""
    max_bytes: int = 64 << 20
    """Largest size of a request's body in bytes, also after decompression. A larger body is answered with status 413, and
    its rest is not read."""
    body_timeout_s: int = 30
    """Seconds in which the body of a request must arrive; a slower one is answered with status 408."""
    stop_timeout_s: int = 60
    """Seconds after SIGTERM in which requests in progress may finish."""
