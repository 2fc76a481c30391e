"""gunicorn's worker class for ASGI applications: uvicorn's worker, on wakeloop's event loop.

    gunicorn -k wakeloop.gunicorn.UvicornWorker module:app

The worker is that of the package uvicorn-worker, or that of an older uvicorn. uvicorn's own setting for the loop would
otherwise choose uvloop, or asyncio's loop.
"""

from __future__ import annotations

import warnings

from ._extras import needed

try:
    from uvicorn_worker import UvicornWorker as _UvicornWorker
except ImportError:
    with warnings.catch_warnings(), needed(__name__, "gunicorn and uvicorn-worker", "gunicorn uvicorn-worker"):
        warnings.simplefilter("ignore", DeprecationWarning)  # It asks for uvicorn-worker, which is not installed.
        from uvicorn.workers import UvicornWorker as _UvicornWorker

__all__ = ["UvicornWorker"]


class UvicornWorker(_UvicornWorker):
    """uvicorn's worker for gunicorn, on wakeloop's event loop. Needs uvicorn 0.36 or newer."""

    CONFIG_KWARGS = {**_UvicornWorker.CONFIG_KWARGS, "loop": "wakeloop:new_event_loop"}
