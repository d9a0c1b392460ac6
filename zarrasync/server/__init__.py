"""An HTTP server for arrays: Zarr for any client, values and tiles, and a viewer.

>>> from zarrasync.server import create_app, run
>>> app = create_app("s3://bucket/era5.zarr", storage_options={"anon": True})
>>> run(app, port=8000)  # doctest: +SKIP

Install it with the extra ``serve``. ``zarrasync.server.asgi`` is the same for frameworks with ASGI, such as FastAPI, and
``Service`` has the functions behind it, for handlers of your own.
"""

from __future__ import annotations

try:
    import cmap as _cmap
    import prometheus_client as _prometheus_client
except ImportError as error:
    raise ImportError(f"the server needs {error.name}: pip install 'zarrasync[serve]'") from error

from zarrasync.server.aiohttp_app import create_app
from zarrasync.server.core import ServerOptions
from zarrasync.server.limits import Limits, TooMuch
from zarrasync.server.running import run
from zarrasync.server.service import SelectedValues, Service, ServiceOptions

__all__ = ["Limits", "SelectedValues", "ServerOptions", "Service", "ServiceOptions", "TooMuch", "create_app", "run"]

del _cmap, _prometheus_client
