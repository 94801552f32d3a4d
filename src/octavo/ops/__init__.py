"""One function per operation: the contract (api), the shared KV layout (kv), and the backends behind `make_ops`."""

from __future__ import annotations

from octavo.core.errors import ConfigError
from octavo.core.host import default_threads
from octavo.ops.api import Ops

__all__ = ["BACKENDS", "make_ops"]

BACKENDS = ("native", "reference")


def make_ops(backend: str = "native", threads: int | None = None) -> Ops:
    """Open a backend; it is imported only now.

    threads: threads of the native backend (None: OCTAVO_THREADS, else one per physical core it may use).
    Raises ConfigError: an unknown backend, one that is not built here, or threads for the reference backend.
    """
    if backend == "reference":
        if threads is not None:
            raise ConfigError(
                f"threads={threads} applies to the native backend; the reference backend runs on NumPy's BLAS threads: "
                "leave threads out and set OPENBLAS_NUM_THREADS"
            )
        from octavo.ops.reference import ReferenceOps

        return ReferenceOps()
    if backend == "native":
        try:
            from octavo.ops.native import NativeOps
        except ImportError as error:
            raise ConfigError(
                f"backend 'native' is not built here ({error}); install Octavo with `pip install .`, "
                "or choose backend='reference' (slow)"
            ) from error
        return NativeOps(default_threads().threads if threads is None else threads)
    raise ConfigError(f"backend {backend!r} is not known; possible: {', '.join(BACKENDS)}")
