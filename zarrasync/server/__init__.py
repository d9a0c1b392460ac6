"""An HTTP server for arrays: Zarr for any client, values and tiles, and a viewer.

>>> from zarrasync.server import create_app, run
>>> app = create_app("s3://bucket/era5.zarr", storage_options={"anon": True})
>>> run(app, port=8000)  # doctest: +SKIP

Install it with the extra ``serve``.
"""

from __future__ import annotations

try:
    import cmap as _cmap
    import prometheus_client as _prometheus_client
except ImportError as error:
    raise ImportError(f"the server needs {error.name}: pip install 'zarrasync[serve]'") from error

from zarrasync.server.app import create_app
from zarrasync.server.limits import Limits
from zarrasync.server.running import run

__all__ = ["Limits", "create_app", "run"]

del _cmap, _prometheus_client
