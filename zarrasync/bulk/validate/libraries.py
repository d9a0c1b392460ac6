"""Validation of conventions by their own libraries, if they are installed: ome-zarr-models and zarr-cm."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from zarrasync.metadata import NodeMetadata
from zarrasync.metadata.conventions import Meaning, Violation

_OME_MODELS = {
    "plate": "hcs.HCSAttrs",
    "multiscales": "image.ImageAttrs",
    "well": "well.WellAttrs",
    "labels": "labels.LabelsAttrs",
}
"""The class of ome-zarr-models that validates an object of OME-Zarr metadata."""
_OME_VERSION = re.compile(r"(0\.[4-9])(rc\d+|\.?dev\d+)?")


def library_violations(metadata: NodeMetadata, meaning: Meaning) -> list[Violation]:
    """Return the deviations that the libraries of conventions report.

    Args:
        metadata: The metadata of a node.
        meaning: What conventions specify about the node.
    """
    attributes = metadata.attributes
    violations = []
    if isinstance(attributes.get("zarr_conventions"), list) and _is_installed("zarr_cm"):
        violations += _validate_zarr_conventions(attributes)
    ome = attributes.get("ome")
    holder = ome if isinstance(ome, Mapping) else attributes
    if any(title.startswith("OME-Zarr") for title in meaning.titles) and _is_installed("ome_zarr_models"):
        violations += _validate_ome(holder, "ome." if holder is ome else "")
    return violations


@cache
def _is_installed(name: str) -> bool:
    return find_spec(name) is not None


def _validate_zarr_conventions(attributes: Mapping[str, Any]) -> list[Violation]:
    """Return what zarr-cm reports: the first problem of each convention."""
    zarr_cm = import_module("zarr_cm")
    try:
        revisions = zarr_cm.detect_revisions(attributes)
    except Exception as error:  # its errors have several types
        return [Violation("error", "zarr_conventions", f"{error} (zarr-cm)")]
    violations = []
    for name, revision in revisions.items():
        try:
            zarr_cm.validate_many(attributes, [name])
        except Exception as error:
            words = re.findall(r"'([^']+)'", str(error))
            location = next((word for word in words if word in attributes), "zarr_conventions")
            severity: Literal["error", "warning"] = "warning" if revision is None else "error"
            violations.append(Violation(severity, location, f"{error} (zarr-cm)"))
    return violations


def _validate_ome(ome: Mapping[str, Any], prefix: str) -> list[Violation]:
    """Return what ome-zarr-models reports."""
    version = _OME_VERSION.fullmatch(str(ome.get("version")) if prefix else "0.4")
    if version is None:
        return []
    plain = {**_plain(ome), "version": version[1]} if prefix else _plain(ome)
    violations = []
    for name in _OME_MODELS.keys() & ome.keys():
        validate = _ome_validator(version[1], name)
        violations += _problems(validate, plain, prefix) if validate is not None else []
    return violations


@cache
def _ome_validator(version: str, name: str) -> Callable[[Any], Any] | None:
    """Return the function that validates an object of OME-Zarr, or ``None`` if the library does not support it."""
    module, _, model = _OME_MODELS[name].partition(".")
    try:
        validate: Callable[[Any], Any] = getattr(
            import_module(f"ome_zarr_models.v{version.replace('.', '')}.{module}"), model
        ).model_validate
    except (ImportError, AttributeError):
        return None
    return validate


def _problems(validate: Callable[[Any], Any], ome: Mapping[str, Any], prefix: str) -> list[Violation]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            validate(ome)
        except Exception as error:
            errors = getattr(error, "errors", None)  # of pydantic
            details: Any = [{"loc": (), "msg": str(error)}] if errors is None else errors()
            return [
                Violation("error", _location(prefix, item["loc"]), f"{item['msg']} (ome-zarr-models)")
                for item in details
            ]
    return [Violation("warning", prefix.rstrip("."), f"{item.message} (ome-zarr-models)") for item in caught]


def _location(prefix: str, parts: tuple[Any, ...]) -> str:
    """Return the location of a problem in JSON path notation."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"{prefix}{text.lstrip('.')}".rstrip(".")


def _plain(value: Any) -> Any:
    """Return a JSON value with plain dicts and lists."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
