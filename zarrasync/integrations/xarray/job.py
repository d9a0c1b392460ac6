"""Arguments of ``write_dataset``, the request for each group, and the state of writing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from xarray import DataArray, Dataset, DataTree, Variable
from xarray.backends.api import DATAARRAY_NAME

from zarrasync import AsyncArray, AsyncGroup
from zarrasync import config as settings
from zarrasync.bulk.block_writer import for_job, write_blocks
from zarrasync.bulk.sources import source_of
from zarrasync.display.progress import IngestReport, ProgressLike
from zarrasync.formats import Format
from zarrasync.indexing.regions import Region
from zarrasync.integrations.dask_targets import is_dask_array
from zarrasync.integrations.xarray.claims import AppendClaim, OnDuplicate, Placement
from zarrasync.integrations.xarray.coordinates import OnMismatch, RegionLike
from zarrasync.integrations.xarray.plan import VariablePlan
from zarrasync.metadata.conventions.cf_encode import Lossy
from zarrasync.metadata.conventions.xarray_properties import UNNAMED
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import handle_of, with_handle
from zarrasync.stores import Store
from zarrasync.transfer.unaligned import Unaligned

Mode: TypeAlias = Literal["w-", "w", "a", "a-", "r+"]
"""How to treat existing groups and variables."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Rarer arguments of ``write_dataset``.

    Attributes:
        consolidated: Whether to write consolidated metadata; ``None`` to write it except with mode ``"r+"``, and to
            stores without support for it.
        compute: Whether to write dask variables now. Otherwise their arrays are created, all other variables are
            written, and the values of dask variables are written by the returned object, or later as regions. If that
            fails, rows that ``append_dim`` has added stay, with the fill value.
        align_chunks: Whether to rechunk dask variables to whole stored chunks. Otherwise blocks that share chunks are
            refused if values could be lost.
        write_inherited_coords: Whether groups of a tree store the coordinates that they inherit.
        chunkmanager_store_kwargs: Options for the computation of dask variables, such as ``num_workers``.

    Example:
        >>> import xarray as xr
        >>> temperature = xr.DataArray([280.0, 281.5], dims="time", name="t2m")
        >>> report = write_dataset(temperature, {}, options=WriteOptions(consolidated=False))
    """

    consolidated: bool | None = None
    compute: bool = True
    align_chunks: bool = True
    write_inherited_coords: bool = False
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class WriteRequest:
    """The arguments of ``write_dataset_async``, with a resolved store and mode, for one group."""

    store: Store
    group: str
    mode: Mode
    append_dim: str | None = None
    region: RegionLike | None = None
    encoding: Encodings = field(default_factory=dict)
    zarr_format: int | str | None = None
    lossy: Lossy = "error"
    on_mismatch: OnMismatch = "error"
    on_duplicate: OnDuplicate = "error"
    verify: bool = False
    progress: ProgressLike = False
    options: WriteOptions = field(default_factory=WriteOptions)
    config: Any = None

    def __post_init__(self) -> None:
        """Check the arguments that are one of several words."""
        words: dict[str, Any] = {"mode": Mode, "lossy": Lossy, "on_mismatch": OnMismatch, "on_duplicate": OnDuplicate}
        for name, choices in words.items():
            if (value := getattr(self, name)) not in get_args(choices):
                raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}; found {value!r}")

    @property
    def unaligned(self) -> Unaligned:
        """Whether several writers, or blocks of dask, may write parts of a chunk."""
        return settings.resolve(self.config).unaligned

    def at(self, path: str, encoding: Encodings) -> WriteRequest:
        """Return the request for a group below this one."""
        return replace(self, group=join(self.group, path), encoding=encoding)


@dataclass(frozen=True)
class VariableTarget:
    """Values of a variable, and their places.

    Attributes:
        name: The name of the variable, in a tree with the path of its group.
        plan: The plan of the variable, with the values.
        array: The array, as ``for_job`` returns it.
        region: The region of the array; ``None`` for all of it.
    """

    name: str
    plan: VariablePlan
    array: AsyncArray
    region: Region | None

    @classmethod
    def of(
        cls, name: str, plan: VariablePlan, array: AsyncArray, region: Region | None, unaligned: Unaligned
    ) -> VariableTarget:
        """Return the target for an array and the treatment of chunks that are written in part."""
        return cls(name, plan, for_job(array, unaligned, plan.write_empty_chunks), region)

    @property
    def is_lazy(self) -> bool:
        """Whether the values are a dask array."""
        return is_dask_array(self.plan.encoded.data)

    @property
    def nbytes(self) -> int:
        """The size of the values in memory, in bytes."""
        return int(self.plan.encoded.size) * max(self.array.dtype.itemsize, 1)

    async def write(self, *, verify: bool, progress: ProgressLike, is_hidden: bool = False) -> IngestReport:
        """Write the values block by block; see ``write_blocks``."""
        encoded = self.plan.encoded
        source = source_of(encoded if encoded.shape else np.asarray(encoded.values), {})
        options: Any = {"is_new": not self.plan.updates, "is_hidden": is_hidden, "verify": verify, "progress": progress}
        return await write_blocks(source, self.array, self.region, self.array.config.unaligned, **options)


@dataclass
class WriteJob:
    """The state of writing one group, which the steps complete.

    Attributes:
        path: The path of the group relative to the group of the whole write.
        request: The arguments.
        dataset: The dataset, without coordinates that are already stored.
        group: The group; ``None`` as long as it does not exist.
        format: The group's format.
        arrays: The arrays of the group, without consolidated metadata, which is updated at the end.
        stored: The variables of the group.
        region: The slices that are written into existing arrays, by dimension.
        is_new: Whether this write creates the group.
        is_empty: Whether nothing existed below the group, so that all nodes below it come from this write.
        plans: The plans of the variables.
        targets: The values to write, and their places. Rows that are appended may be several targets, or none.
        attributes: The group's new attributes.
        claim: The claim of the rows, so that no other writer appends the same labels.
        placement: The places of the rows that are appended.
        reservations: Arrays with the axis, the start and the stop of rows that are reserved, and released after a failure.
    """

    path: str
    request: WriteRequest
    dataset: Dataset
    group: AsyncGroup | None
    format: Format
    arrays: dict[str, AsyncArray]
    stored: dict[str, Variable]
    region: dict[str, slice] | None
    is_new: bool
    is_empty: bool = False
    plans: list[VariablePlan] = field(default_factory=list)
    targets: list[VariableTarget] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    claim: AppendClaim | None = None
    placement: Placement | None = None
    reservations: list[tuple[AsyncArray, int, int, int]] = field(default_factory=list)

    @property
    def unaligned(self) -> Unaligned:
        """How to treat chunks that are written in part. Only this writer writes reserved rows."""
        return "allow" if self.request.append_dim is not None else self.request.unaligned

    @property
    def new_plans(self) -> list[VariablePlan]:
        """The plans of the variables whose arrays are created."""
        return [plan for plan in self.plans if not plan.updates]

    @property
    def bare_group(self) -> AsyncGroup:
        """The group, which exists, without consolidated metadata."""
        assert self.group is not None
        return with_handle(self.group, handle_of(self.group).without_consolidated())

    def path_of(self, plan: VariablePlan) -> str:
        """Return the path of the array of a variable."""
        return join(self.request.group, plan.name)


DatasetLike: TypeAlias = Dataset | DataArray | DataTree
"""Data that ``write_dataset`` accepts."""
Encodings: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Encodings by variable."""


def datasets_of(data: DatasetLike, *, inherit: bool) -> dict[str, Dataset]:
    """Return the dataset of each group by its relative path, the groups above others first.

    Args:
        data: A dataset, an array or a tree.
        inherit: Whether groups of a tree contain the coordinates that they inherit.

    Raises:
        TypeError: If it is something else.
    """
    if isinstance(data, Dataset):
        return {"": data}
    if isinstance(data, DataArray):
        return {"": _dataset_of(data)}
    if isinstance(data, DataTree):
        nodes = {_relative_path(data, node): node for node in data.subtree}
        return {path: node.to_dataset(inherit=inherit or not path) for path, node in nodes.items()}
    raise TypeError(
        f"write_dataset needs a Dataset, DataArray or DataTree, found {type(data).__name__}; convert it, for example "
        "with to_dataset() or to_xarray()"
    )


def _relative_path(tree: DataTree, node: DataTree) -> str:
    return "" if node is tree else normalize_path(node.path[len(tree.path) :])


def _dataset_of(array: DataArray) -> Dataset:
    """Return an array as a dataset, with the name that xarray gives to unnamed arrays."""
    if array.name is None or array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=UNNAMED)
        if array.name is not None:
            dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()


def encodings_of(data: DatasetLike, encoding: Mapping[str, Any] | None) -> dict[str, Encodings]:
    """Return the encodings of each group by its relative path.

    Args:
        data: A dataset, an array or a tree.
        encoding: Encodings by variable; for a tree, a mapping of the paths of its groups to encodings by variable.

    Raises:
        ValueError: If a tree has no group of a path.
    """
    if not isinstance(data, DataTree):
        return {"": encoding or {}}
    paths = {normalize_path(node.path): _relative_path(data, node) for node in data.subtree}
    if unknown := [path for path in encoding or {} if normalize_path(path) not in paths]:
        raise ValueError(
            f"the encoding names {unknown[0]!r}, which is not a group of the tree; the groups are "
            f"{', '.join(node.path for node in data.subtree)}"
        )
    return {paths[normalize_path(path)]: encodings for path, encodings in (encoding or {}).items()}


def check_names(dataset: Dataset, group: str, encoding: Encodings) -> None:
    """Check the names of variables and dimensions, and the form of encodings.

    Raises:
        ValueError: If an encoding names no variable.
        TypeError: If a name is not a string, or an encoding is not a mapping.
        InvalidKeyError: If a variable's name cannot be the name of an array.
    """
    if not isinstance(encoding, Mapping):
        raise TypeError(f"the encoding must be a mapping of variables to their encodings, found {encoding!r}")
    if unknown := sorted(set(map(str, encoding)) - set(map(str, dataset.variables))):
        raise ValueError(f"the encoding names {unknown[0]!r}, which is not a variable of the dataset")
    for variable, options in encoding.items():
        if not isinstance(options, Mapping):
            raise TypeError(f"the encoding of {variable!r} must be a mapping, found {options!r}")
    if invalid := [name for name in (*dataset.variables, *dataset.dims) if not isinstance(name, str)]:
        raise TypeError(f"names of variables and dimensions must be strings, found {invalid[0]!r}")
    for name in dataset.variables:
        normalize_path(join(group, str(name)))
