"""OME-Zarr that ome-zarr-py writes is understood and valid, and its readers and ome-zarr-models accept ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.conventions import write_ome_image
from zarrasync import sync

xarray = pytest.importorskip("xarray")
VALUES = (np.arange(2 * 64 * 96).reshape(2, 64, 96) % 251).astype("u2")
# They use what newer versions of NumPy, dask and zarr-python deprecate.
pytestmark = [pytest.mark.foreign, pytest.mark.filterwarnings("ignore")]


def write_image(path: Path, version: str, **options: Any) -> Any:
    """Write an image with ome-zarr-py, and return the root group."""
    ome_zarr_format = pytest.importorskip("ome_zarr.format")
    zarr = pytest.importorskip("zarr")
    from ome_zarr.writer import write_image

    formats = {"0.4": ome_zarr_format.FormatV04, "0.5": ome_zarr_format.FormatV05}
    root = zarr.open_group(str(path), mode="w", zarr_format=2 if version == "0.4" else 3)
    write_image(VALUES, root, axes="cyx", fmt=formats[version](), **options)
    return root, formats[version]()


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_images_and_labels_of_ome_zarr_py(tmp_path: Path, version: str):
    root, format_ = write_image(tmp_path / "a", version)
    from ome_zarr.writer import write_labels

    labels = (VALUES > 100).astype("i4")
    write_labels(labels, root, name="cells", axes="cyx", fmt=format_)
    report = sync.validate(tmp_path / "a")
    assert report.ok, report
    group = sync.open_group(tmp_path / "a")
    assert group.info["Conventions"] == f"OME-Zarr {version} image"
    dataset = xarray.open_dataset(tmp_path / "a", engine="zarrasync")
    np.testing.assert_array_equal(dataset.image, VALUES)
    tree = xarray.open_datatree(tmp_path / "a", engine="zarrasync")
    found = [node for node in tree["labels/cells"].children.values() if node.sizes["x"] == 96]
    np.testing.assert_array_equal(found[0].labels, labels)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_plates_of_ome_zarr_py(tmp_path: Path, version: str):
    root, format_ = write_image(tmp_path / "a", version)
    from ome_zarr.writer import write_image as write
    from ome_zarr.writer import write_plate_metadata, write_well_metadata

    for name in list(root):
        del root[name]
    root.attrs.clear()
    write_plate_metadata(root, ["A"], ["1", "2"], ["A/1"], fmt=format_)
    well = root.require_group("A/1")
    write_well_metadata(well, ["0"], fmt=format_)
    write(VALUES, well.require_group("0"), axes="cyx", fmt=format_)
    report = sync.validate(tmp_path / "a")
    assert report.ok, report
    assert sync.open_group(tmp_path / "a").info["Plate"] == "1 row, 2 columns, 1 well"
    np.testing.assert_array_equal(xarray.open_dataset(tmp_path / "a", engine="zarrasync", group="A/1/0").image, VALUES)


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_readers_accept_ours(tmp_path: Path, version: str):
    models = pytest.importorskip("ome_zarr_models", minversion="1.8" if version == "0.6" else None)
    zarr = pytest.importorskip("zarr")
    write_ome_image(tmp_path / "a", version)
    image = models.open_ome_zarr(zarr.open_group(str(tmp_path / "a"), mode="r"))
    assert image.ome_zarr_version == version


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ngff_zarr_reads_ours_and_we_read_theirs(tmp_path: Path, version: str):
    ngff_zarr = pytest.importorskip("ngff_zarr")
    expected = write_ome_image(tmp_path / "ours", version)
    image = ngff_zarr.from_ngff_zarr(str(tmp_path / "ours")).images[1]
    assert (image.scale["x"], image.translation["x"]) == (1.0, 0.25)
    np.testing.assert_array_equal(np.asarray(image.data), expected[:, ::2, ::2])
    image = ngff_zarr.to_ngff_image(VALUES, dims=["c", "y", "x"], scale={"y": 0.5, "x": 0.25, "c": 1.0})
    ngff_zarr.to_ngff_zarr(str(tmp_path / "theirs"), ngff_zarr.to_multiscales(image, scale_factors=[]), version=version)
    dataset = xarray.open_dataset(tmp_path / "theirs", engine="zarrasync")
    np.testing.assert_array_equal(dataset.image, VALUES)
    assert float(dataset.x[4]) == 1.0
    assert sync.validate(tmp_path / "theirs").ok
