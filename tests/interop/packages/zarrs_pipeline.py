import zarr
import zarrs  # noqa: F401  # registers the codec pipeline
from zarr_python import read, write  # noqa: F401

PACKAGES = ["zarrs", "zarr"]
zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": False})
