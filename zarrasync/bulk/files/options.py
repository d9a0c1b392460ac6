"""Groups of rarer arguments of functions that ingest files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from zarrasync._util.records import TRANSIENT
from zarrasync.metadata.create import DEFAULT, check_options


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are opened, and the parts to store.

    Attributes:
        labels: Where labels of rows come from. Default: the variable with the name of the dimension, if it exists. A pattern of
            the names of files, such as ``"ndvi_%Y%m%d"`` for times, or ``"member_{int}"``, ``"level_{float}"`` or ``"{str}_tas"``.
            ``None``: rows have no labels, and are stacked in the order of the files.
        coordinate_tolerance: The largest difference between coordinates of files that are equal. The first ones are stored.
        optional: The names of variables that files may lack, such as one that begins later. Their rows contain the fill value.
        ignore_attributes: The names of attributes that may differ between files although they give a variable its meaning, such as
            ``"cell_methods"``. The attributes of the first file are kept.
        variables: The names of the variables to store, with the coordinates and bounds that belong to them. Default: all.
        group: The group inside the files.
        dims: The names of the axes of ``.npy``, ``.npz`` and HDF5 arrays without names.
        decode: Unpack values with ``scale_factor`` and ``add_offset``. Default: the packed numbers are stored.
        engine: xarray's engine. Default: chosen by the content of the file.
        engine_options: Arguments of ``xarray.open_dataset``.
        storage_options: Options of the filesystem or object store of URLs.
    """

    labels: str | None = ""
    coordinate_tolerance: float = 0.0
    optional: Sequence[str] = ()
    ignore_attributes: Sequence[str] = ()
    variables: Sequence[str] = ()
    group: str = ""
    dims: Sequence[str] | None = None
    decode: bool = False
    engine: str | None = None
    # Options may contain credentials.
    engine_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, metadata=TRANSIENT)

    def __post_init__(self) -> None:
        if self.labels is not None and not isinstance(self.labels, str):
            raise TypeError(f"labels must be a pattern of names, such as 'ndvi_%Y%m%d'; found {self.labels!r}")
        tolerance: Any = self.coordinate_tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
            raise ValueError(f"coordinate_tolerance must be a number of at least 0, found {tolerance!r}")
        dims = self.dims.split(",") if isinstance(self.dims, str) else self.dims
        values: dict[str, Any] = {"dims": None if dims is None else tuple(dims)}
        for name in ("optional", "ignore_attributes", "variables"):
            value = getattr(self, name)
            values[name] = (value,) if isinstance(value, str) else tuple(value or ())
        for name in ("engine_options", "storage_options"):
            values[name] = dict(getattr(self, name) or {})
        vars(self).update(values)  # which is frozen


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How new arrays of a dataset are stored. The defaults are the same as for ``create_array``.

    Attributes:
        chunks: The shape of chunks, or a mapping such as ``{"time": 24, "lat": 90}``. Dimensions that it does not contain
            are not divided.
        shards: The shape of shards, or such a mapping. Default: no shards.
        compressors: As for ``create_array``.
        filters: As for ``create_array``.
        serializer: As for ``create_array``.
        fill_value: As for ``create_array``.
        order: As for ``create_array``.
        chunk_key_encoding: As for ``create_array``.
        zarr_format: 2 or 3.
        encoding: The same parameters, ``dtype`` and ``attributes`` for single variables, by their names.
    """

    chunks: Any = DEFAULT
    shards: Any = DEFAULT
    compressors: Any = DEFAULT
    filters: Any = DEFAULT
    serializer: Any = DEFAULT
    fill_value: Any = DEFAULT
    order: Any = DEFAULT
    chunk_key_encoding: Any = DEFAULT
    zarr_format: Any = DEFAULT
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        encoding: Any = self.encoding or {}
        if not isinstance(encoding, Mapping):
            raise TypeError(f"the encoding must be a mapping of variables to their parameters, found {encoding!r}")
        for name, own in encoding.items():
            if not isinstance(own, Mapping):
                raise TypeError(f"the encoding of {name!r} must be a mapping, found {own!r}")
            check_options(own)
        vars(self)["encoding"] = dict(encoding)

    @property
    def options(self) -> dict[str, Any]:
        """The parameters of ``create_array`` that are set for all arrays."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "encoding"}
        return {name: value for name, value in values.items() if value is not DEFAULT}
