"""zarrasync for programs that use zarr-python: a codec pipeline that makes it faster, and stores for it.

The codec pipeline is adopted by one setting, after which zarr-python reads and writes chunks with zarrasync's engine::

    zarr.config.set({"codec_pipeline.path": "zarrasync.integrations.zarr.CodecPipeline"})

Stores of zarrasync are passed to zarr-python's functions: ``dataset.to_zarr(zarr_store("s3://…"))``.
"""

from zarr.registry import register_pipeline

from zarrasync.integrations.zarr.pipeline import CodecPipeline
from zarrasync.integrations.zarr.store import ZarrStore, zarr_store

__all__ = ["CodecPipeline", "ZarrStore", "zarr_store"]

CodecPipeline.__module__ = __name__  # zarr-python finds pipelines by their module and name
register_pipeline(CodecPipeline)
