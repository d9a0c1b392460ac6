"""A state machine of a hierarchy, beside a dict of its nodes. Its metadata may be consolidated at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.fresh_stores import NODE_STORES, fresh_path
from tests.property.other_readers import zarr_python_lists
from tests.property.strategies import ATTRIBUTES, FORMATS, SEEDS
from tests.support.api import Driver
from zarrasync.errors import NodeExistsError, NodeNotFoundError, NodeTypeError, ShapeError, UnsupportedByFormat

NAMES = st.sampled_from(["a", "b", "0", "c", "x.y", "meta"])
PATHS = st.lists(NAMES, min_size=1, max_size=2).map("/".join)
VALUES = SEEDS.map(lambda seed: np.random.default_rng(seed).integers(0, 9, seed % 6).astype(["i4", "f8"][seed % 2]))
DEPTHS = st.sampled_from([0, 1, None])


class Node(NamedTuple):
    """A node of the model.

    Attributes:
        attributes: The attributes.
        values: The values of an array; ``None`` for a group.
    """

    attributes: dict[str, Any]
    values: np.ndarray | None = None


class GroupMachine(RuleBasedStateMachine):
    """Each rule uses the root group or a group below it, which was opened with or without consolidated metadata."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        super().__init__()
        self.driver, self.folder, self.za = driver, folder, driver.za

    # -------------------------------------------------------------- creating and opening

    @initialize(
        zarr_format=st.sampled_from(FORMATS),
        kind=st.sampled_from([*NODE_STORES]),
        attributes=ATTRIBUTES,
        consolidated=st.booleans(),
    )
    def create(self, zarr_format: Any, kind: str, attributes: Any, consolidated: bool) -> None:
        self.store, self.zarr_format = NODE_STORES[kind](fresh_path(self.folder)), zarr_format
        self.root = self.driver(self.za.create_group(self.store, zarr_format=zarr_format, attributes=attributes))
        self.stored = {"": Node(attributes)}
        self.is_consolidated = False
        if consolidated:
            self.consolidate()

    def _open(self, *, use_consolidated: bool | None) -> Any:
        return self.driver(self.za.open_group(self.store, mode="r+", use_consolidated=use_consolidated))

    @rule()
    def consolidate(self) -> None:
        if self.zarr_format == "3-draft":
            with pytest.raises(UnsupportedByFormat):
                self.driver(self.za.consolidate_metadata(self.store))
            return
        self.driver(self.za.consolidate_metadata(self.store))
        self.is_consolidated = True
        self.root = self._open(use_consolidated=True)

    @rule(explicit=st.booleans())
    def open_again(self, explicit: bool) -> None:
        self.root = self._open(use_consolidated=self.is_consolidated if explicit else None)

    # -------------------------------------------------------------- the model

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes with documents, and the groups of the drafts that exist because nodes exist below them."""
        return {above: Node({}) for path in self.stored for above in _above(path)} | self.stored

    def _choose(self, data: st.DataObject, kind: str) -> str:
        """Return the path of a group, an array or any node of the model."""
        paths = [
            path for path, node in self.nodes.items() if (node.values is None) == (kind == "group") or kind == "any"
        ]
        return data.draw(st.sampled_from(sorted(paths)))

    def _group(self, data: st.DataObject) -> tuple[Any, str]:
        """Return a group and the prefix of its members in the model."""
        path = self._choose(data, "group")
        return (self.driver(self.root.getitem(path)), f"{path}/") if path else (self.root, "")

    def _path(self, data: st.DataObject, prefix: str) -> str:
        """Return the relative path of a node below a group, or a path where none may exist."""
        existing = sorted(path[len(prefix) :] for path in self.nodes if path.startswith(prefix) and path != "")
        return data.draw(PATHS | st.sampled_from(existing) if existing else PATHS)

    def _below(self, path: str) -> dict[str, Node]:
        """Return a node and the nodes below it, by relative path with a leading slash, or an empty string."""
        return {p[len(path) :]: node for p, node in self.nodes.items() if p == path or p.startswith(f"{path}/")}

    def _erase(self, path: str) -> None:
        for relative in self._below(path):
            self.stored.pop(path + relative, None)

    def _put(self, path: str, node: Node) -> None:
        for above in _above(path):
            if self.zarr_format in (2, 3):
                self.stored.setdefault(above, Node({}))
        self.stored[path] = node

    def _error(self, path: str, *, overwrite: bool, is_group: bool = False) -> type[Exception] | None:
        """Return the error that creating a node must raise. A group may get a document if it exists without one."""
        if any(above in self.stored and self.stored[above].values is not None for above in _above(path)):
            return NodeTypeError
        return NodeExistsError if path in (self.stored if is_group else self.nodes) and not overwrite else None

    def _call(self, error: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        """Make a call. Return its result, or check that it raises an error."""
        if error is None:
            return self.driver(function(*arguments, **options))
        with pytest.raises(error):
            self.driver(function(*arguments, **options))
        return None

    # -------------------------------------------------------------- creating members

    @rule(data=st.data(), attributes=ATTRIBUTES, overwrite=st.booleans())
    def create_group(self, data: st.DataObject, attributes: Any, overwrite: bool) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        error = self._error(prefix + name, overwrite=overwrite, is_group=True)
        made = self._call(error, group.create_group, name, attributes=attributes, overwrite=overwrite)
        if error is None:
            assert (made.path, dict(made.attrs)) == (prefix + name, attributes)
            if overwrite:
                self._erase(prefix + name)
            self._put(prefix + name, Node(attributes))

    @rule(data=st.data(), attributes=ATTRIBUTES, values=VALUES, overwrite=st.booleans())
    def create_array(self, data: st.DataObject, attributes: Any, values: np.ndarray, overwrite: bool) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        error = self._error(prefix + name, overwrite=overwrite)
        options = {"data": values, "chunks": 2, "attributes": attributes, "overwrite": overwrite}
        self._call(error, group.create_array, name, **options)
        if error is None:
            self._erase(prefix + name)
            self._put(prefix + name, Node(attributes, values))

    @rule(data=st.data(), values=VALUES)
    def set_item(self, data: st.DataObject, values: np.ndarray) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        error = self._error(prefix + name, overwrite=True)
        self._call(error, group.setitem, name, values)
        if error is None:
            self._erase(prefix + name)
            self._put(prefix + name, Node({}, values))

    @rule(data=st.data(), attributes=ATTRIBUTES)
    def require_group(self, data: st.DataObject, attributes: Any) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        present = self.nodes.get(prefix + name)
        error = (
            self._error(prefix + name, overwrite=True)
            if present is None
            else None
            if present.values is None
            else NodeTypeError
        )
        member = self._call(error, group.require_group, name, attributes=attributes)
        if error is None:
            assert dict(member.attrs) == (present or Node(attributes)).attributes
            if present is None:
                self._put(prefix + name, Node(attributes))

    @rule(data=st.data(), values=VALUES)
    def require_array(self, data: st.DataObject, values: np.ndarray) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        present: Node | None = self.nodes.get(prefix + name)
        error: Any = None
        if present is None:
            error = self._error(prefix + name, overwrite=True)
        elif present.values is None:
            error = NodeTypeError
        elif present.values.shape != values.shape or not np.can_cast(present.values.dtype, values.dtype):
            error = (ShapeError, NodeTypeError)
        self._call(error, group.require_array, name, shape=values.shape, dtype=values.dtype)
        if error is None:
            self._put(prefix + name, present or Node({}, np.zeros_like(values)))

    @rule(paths=st.lists(PATHS, max_size=4, unique=True), values=VALUES, attributes=ATTRIBUTES)
    def create_hierarchy(self, paths: list[str], values: np.ndarray, attributes: Any) -> None:
        """Create arrays and groups at once, if nothing is in the way."""
        nodes = {path: Node(attributes, values if number % 2 else None) for number, path in enumerate(paths)}
        arrays = [path for path, node in nodes.items() if node.values is not None]
        if any(self._error(path, overwrite=False) for path in paths) or any(
            a in arrays for path in paths for a in _above(path)
        ):
            return
        options = {
            path: {"attributes": attributes} | ({} if node.values is None else {"data": values})
            for path, node in nodes.items()
        }
        self.driver(self.za.create_hierarchy(self.store, options, zarr_format=self.zarr_format))
        for path, node in nodes.items():
            for above in _above(path):
                self.stored.setdefault(above, Node({}))  # also in the drafts
            self._put(path, node)
        self._consolidate_again()

    # -------------------------------------------------------------- changing members

    def _consolidate_again(self) -> None:
        """Update copies of documents after a change that was not made through a group."""
        if self.is_consolidated:
            self.consolidate()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        self._call(None if prefix + name in self.nodes else NodeNotFoundError, group.delete, name)
        self._erase(prefix + name)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        group, prefix = self._group(data)
        source, dest = self._path(data, prefix), data.draw(PATHS)
        error: Any = None
        if prefix + source not in self.nodes:
            error = NodeNotFoundError
        elif source != dest and f"{dest}/".startswith(f"{source}/"):
            error = NodeExistsError
        elif source != dest:
            error = self._error(prefix + dest, overwrite=False)
        self._call(error and (error, NodeExistsError, NodeTypeError), group.move, source, dest)
        if error is None and source != dest:
            moved = {p: node for p, node in self._below(prefix + source).items() if prefix + source + p in self.stored}
            self._erase(prefix + source)
            above = _above(dest)[0]
            if prefix + above not in self.nodes and above:
                self._put(prefix + above, Node({}))
            for relative, node in moved.items():
                self._put(prefix + dest + relative, node)

    @rule(data=st.data(), overwrite=st.booleans())
    def copy(self, data: st.DataObject, overwrite: bool) -> None:
        source, dest = self._choose(data, "any"), self._path(data, "")
        if dest in self.nodes and dest not in self.stored:
            return  # the copies are merged with the members of a group without a document
        error: Any = self._error(dest, overwrite=overwrite)
        if f"{dest}/".startswith(f"{source}/" if source else "") or f"{source}/".startswith(f"{dest}/"):
            error = (NodeExistsError, NodeTypeError)
        options = {"dest_path": dest, "overwrite": overwrite, "verify": True}
        node = self.driver(self.za.open(self.store, path=source))
        self._call(error, self.za.copy, node, self.store, **options)
        if error is None:
            copied = self._below(source)
            self._erase(dest)
            for relative, node in copied.items():
                self._put(dest + relative, node)
        self._consolidate_again()

    @rule(data=st.data(), attributes=ATTRIBUTES)
    def update_attributes(self, data: st.DataObject, attributes: Any) -> None:
        path = self._choose(data, "any")
        node = self.driver(self.root.getitem(path)) if path else self.root
        self.driver(node.update_attributes(attributes))
        old = self.nodes[path]
        self.stored[path] = old._replace(attributes={**old.attributes, **attributes})
        assert dict(node.attrs) == self.nodes[path].attributes

    @precondition(lambda self: any(node.values is not None for node in self.nodes.values()))
    @rule(data=st.data(), values=VALUES)
    def replace_values(self, data: st.DataObject, values: np.ndarray) -> None:
        path = self._choose(data, "array")
        array = self.driver(self.root.getitem(path))
        values = values.astype(array.dtype)
        self.driver(array.resize(values.shape))
        self.driver(array.setitem(..., values))
        self.stored[path] = self.stored[path]._replace(values=values)

    # -------------------------------------------------------------- reading

    @rule(data=st.data(), depth=DEPTHS)
    def list_members(self, data: st.DataObject, depth: int | None) -> None:
        group, prefix = self._group(data)
        below = {path[len(prefix) :]: node for path, node in self.nodes.items() if path.startswith(prefix) and path}
        expected = sorted(path for path in below if depth is None or path.count("/") <= depth)
        members = self.driver(group.members(max_depth=depth))
        assert [path for path, _ in members] == expected
        for path, member in members:
            self._check(member, below[path])
        assert self.driver(group.nmembers(max_depth=depth)) == len(expected)
        direct = sorted(path for path in below if "/" not in path)
        assert list(self.driver(group.keys())) == direct
        assert list(self.driver(group.array_keys())) == [path for path in direct if below[path].values is not None]
        assert list(self.driver(group.group_keys())) == [path for path in direct if below[path].values is None]
        lines = str(self.driver(group.tree(max_depth=depth))).splitlines()[1:]
        assert sorted(line.split("── ")[1].split(" (")[0] for line in lines) == sorted(
            p.rpartition("/")[2] for p in expected
        )
        if self.driver.name == "sync":
            assert [*group] == direct
            assert len(group) == len(direct)
            assert [name for name, _ in group.items()] == direct

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        group, prefix = self._group(data)
        name = self._path(data, prefix)
        node = self.nodes.get(prefix + name)
        assert self.driver(group.contains(name)) == (node is not None)
        member = self.driver(group.get(name))
        assert (member is None) == (node is None)
        if node is not None:
            self._check(member, node)

    def _check(self, member: Any, node: Node) -> None:
        assert isinstance(member, type(self.root)) == (node.values is None)
        assert dict(member.attrs) == node.attributes
        if node.values is not None:
            assert (member.shape, member.dtype) == (node.values.shape, node.values.dtype)
            np.testing.assert_array_equal(self.driver(member.getitem(...)), node.values)

    # -------------------------------------------------------------- what always holds

    @invariant()
    def nodes_are_those_of_the_model(self) -> None:
        if not hasattr(self, "root"):
            return
        for use_consolidated in {False, self.is_consolidated}:
            root = self._open(use_consolidated=use_consolidated)
            assert dict(root.attrs) == self.nodes[""].attributes
            members = self.driver(root.members(max_depth=None))
            assert [path for path, _ in members] == sorted(path for path in self.nodes if path), use_consolidated
            for path, member in members:
                self._check(member, self.nodes[path])

    def teardown(self) -> None:
        if hasattr(self, "root"):
            report = self.driver(self.za.validate(self.store, data=True))
            assert report.ok, report
            assert [finding for finding in report.findings if finding.severity != "note"] == []
            values = {key: self.driver.store(self.store, "get", key) for key in self.driver.store(self.store, "list")}
            if self.zarr_format in (2, 3):
                zarr_python_lists(values, self.zarr_format, self.nodes, use_consolidated=self.is_consolidated)


def _above(path: str) -> list[str]:
    """Return the paths above a path, the root last."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in reversed(range(len(parts)))]
