"""HTML of arrays, groups, hierarchies and selections for notebooks. No IO."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from zarrasync.display.svg import draw
from zarrasync.display.text import Table, counted, size_text, table_lines
from zarrasync.metadata import ArrayMetadata, GroupMetadata
from zarrasync.metadata.conventions import axis_names

# Text and lines have the colour of the page's text. Chunks that are read have a colour with contrast to white and black.
_STYLE = """<style>
.za-plain{display:none}.za{display:block!important}
.za{font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit;max-width:860px;margin:2px 0}
.za-card{border:1px solid color-mix(in srgb,currentColor 22%,transparent);border-radius:8px;overflow:hidden}
.za-head{padding:7px 14px;border-bottom:1px solid color-mix(in srgb,currentColor 14%,transparent);
background:color-mix(in srgb,currentColor 5%,transparent)}
.za-head b{font-weight:600}.za-head span,.za-dim{opacity:.72}
.za-body{display:flex;flex-wrap:wrap;gap:6px 26px;padding:10px 14px;align-items:flex-start}
.za table.za-facts{border-collapse:collapse;margin:0;border:0;flex:1 1 300px;font-size:13px}
.za table.za-facts th,.za table.za-facts td{text-align:left;padding:1.5px 14px 1.5px 0;border:0;background:none;
vertical-align:top;font-weight:400;white-space:normal;overflow-wrap:anywhere}
.za table.za-facts th{opacity:.72;white-space:nowrap;width:1%}.za table.za-facts tr{background:none}
.za details{padding:0 14px 8px}.za summary{cursor:pointer;opacity:.85}
.za pre{margin:4px 0 2px;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere;max-height:22em;overflow:auto;
background:none;color:inherit}
.za table.za-rows{border-collapse:collapse;margin:2px 0 8px;font-size:13px}.za table.za-rows th,.za table.za-rows td{
padding:2px 0 2px 22px;border:0;background:none;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.za table.za-rows th{opacity:.72;font-weight:400}.za table.za-rows .za-text{text-align:left;padding-left:0;
white-space:normal;overflow-wrap:anywhere}.za table.za-rows .za-text~.za-text{padding-left:22px}
.za-scroll{overflow-x:auto;padding:6px 14px 0}.za-note{padding:6px 14px 0;font-size:13px}
.za-picture{flex:none;max-width:100%}.za-picture text{font-size:11px;fill:currentColor;opacity:.85;
font-family:system-ui,sans-serif}
.za-box{fill:color-mix(in srgb,currentColor 6%,transparent);stroke:currentColor;stroke-width:1}
.za-chunk{stroke:currentColor;stroke-width:.6;opacity:.38;fill:none}
.za-fine{stroke:currentColor;stroke-width:.5;opacity:.13;fill:none}
.za-shard{stroke:currentColor;stroke-width:1.4;opacity:.85;fill:none}
.za-hit{fill:#e8743b;fill-opacity:.72}
.za .za-tree ul,.za.za ul{list-style:none!important;margin:0!important;padding-left:18px!important}
.za.za .za-tree>ul{padding:8px 14px 10px!important}
.za-tree li{margin:1px 0;overflow-wrap:anywhere}.za-tree li::marker{content:""}.za-tree details{padding:0}.za-tree code{font-size:12px;background:none;color:inherit}
.za-tree summary,.za-leaf{font-size:13px}.za-leaf{padding-left:15px;display:block}
.za-search{float:right;font:inherit;font-size:12px;padding:1px 6px;width:13em;color:inherit;background:transparent;
border:1px solid color-mix(in srgb,currentColor 30%,transparent);border-radius:4px}
</style>"""

_SEARCH = (
    "const q=this.value.toLowerCase(),r=this.closest('.za-tree');"
    "r.querySelectorAll('li').forEach(l=>{l.style.display=l.textContent.toLowerCase().includes(q)?'':'none';"
    "if(q&&l.firstElementChild.tagName==='DETAILS')l.firstElementChild.open=true})"
)
_STORAGE = frozenset((
    *("Zarr format", "Chunk shape", "Shard shape", "Fill value", "Codecs", "Chunk keys", "Shards", "Chunks", "Size"),
    *("Stored size", "Compression", "Store"),
))  # fmt: skip
"""Facts that a card shows below those about the values."""
_MAX_ATTRIBUTE_CHARACTERS = 20_000
_MAX_FIELDS = 20
"""The maximum number of fields of a structured data type to show."""
_MAX_NODES = 500
"""The maximum number of nodes of a hierarchy to show."""
_MAX_UNFOLDED = 60
"""The maximum number of nodes of a hierarchy that is unfolded at first."""


def array(metadata: ArrayMetadata, facts: Mapping[str, str], name: str) -> str:
    """Return the HTML card of an array.

    Args:
        metadata: The metadata of the array.
        facts: The text of each fact by its name.
        name: The name of the array.
    """
    values = facts.get("Values", "").partition(",")[0]  # of a decoded array
    head = f"{metadata.shape} {f'{values} from ' if values else ''}{metadata.dtype.name}"
    body = _body({**facts, **_value_facts(metadata)})
    return card(facts.get("Type", "Array"), name, head, body, draw(metadata), _attributes(metadata.attributes))


def group(
    metadata: GroupMetadata,
    facts: Mapping[str, str],
    name: str,
    members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]] | None,
) -> str:
    """Return the HTML card of a group.

    Args:
        metadata: The metadata of the group.
        facts: The text of each fact by its name.
        name: The name of the group.
        members: The relative paths and the metadata of the nodes below the group, or ``None`` if listing them takes
            requests.
    """
    if members is None:
        head, tree = "call .tree() to list the members", ""
    else:
        head, branches = counted(len(members), "node") + " below", _branches(dict(members), {})
        tree = f'<div class="za-tree"><ul>{branches}</ul></div>' if branches else ""
    return card("Group", name, head, _body(facts), "", _attributes(metadata.attributes) + tree)


def info(facts: Mapping[str, str]) -> str:
    """Return facts as a table."""
    return _wrapped(f'<div class="za-card"><div class="za-body">{_table(facts)}</div></div>', _lines("", facts))


def tree(
    text: str,
    name: str,
    members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]],
    failures: Mapping[str, str],
) -> str:
    """Return a hierarchy as HTML that unfolds, with a search field.

    Args:
        text: The hierarchy as a string.
        name: The name of the root group.
        members: The relative paths and the metadata of the nodes below the root group.
        failures: The reason why a node cannot be read, by relative path.
    """
    search = (
        f'<input class="za-search" type="search" placeholder="search" aria-label="search the tree" '
        f'oninput="{escape(_SEARCH)}">'
        if len(members) > 3
        else ""
    )
    arrays = sum(isinstance(node, ArrayMetadata) for _, node in members)
    counts = f"{counted(arrays, 'array')}, {counted(len(members) - arrays, 'group')}"
    return _wrapped(
        f'<div class="za-card za-tree"><div class="za-head"><b>{escape(name)}</b> '
        f"<span>{counts}</span>{search}</div><ul>{_branches(dict(members), failures)}</ul></div>",
        text,
    )


def card(kind: str, name: str, head: str, facts: Mapping[str, str], picture: str, more: str = "") -> str:
    """Return the card of a node or a selection.

    Args:
        kind: The kind of card.
        name: The name of the node.
        head: The rest of the first line.
        facts: The text of each fact by its name.
        picture: The picture next to the facts.
        more: What follows below.
    """
    return _wrapped(
        f'<div class="za-card"><div class="za-head"><b>{kind} {escape(name)}</b> '
        f'<span>{escape(head)}</span></div><div class="za-body">{_table(facts)}{picture}</div>{more}</div>',
        _lines(f"{kind} {name} {head}", facts),
    )


def report(summary: str, notes: Sequence[str], tables: Sequence[Table]) -> str:
    """Return the report of a job as a card: a line, remarks, and tables."""
    remarks = "".join(f'<div class="za-note">{escape(note)}</div>' for note in notes)
    head = f'<div class="za-head"><b>{escape(summary)}</b></div>'
    text = "\n".join([summary, *notes, *(line for table in tables for line in table_lines(table))])
    return _wrapped(f'<div class="za-card">{head}{remarks}{"".join(map(_rows, tables))}</div>', text)


def page(title: str, body: str) -> str:
    """Return a document with one card, in light or dark colours as the reader prefers."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="margin:24px auto;padding:0 16px;max-width:1100px;font-family:system-ui,sans-serif">{body}</body></html>'
    )


def _rows(table: Table) -> str:
    is_text = [not name.startswith(">") for name in table.columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        classes = (' class="za-text"' if text else "" for text in is_text)
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(classes, cells, strict=True))

    head = row("th", [name.removeprefix(">") for name in table.columns])
    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in table.rows)
    title = f'<div class="za-dim">{escape(table.title)}</div>' if table.title else ""
    grid = f'<table class="za-rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="za-scroll">{title}{grid}</div>'


def _wrapped(card: str, text: str) -> str:
    """Return a card that is replaced by text where styles are removed, as in notebooks that are not trusted."""
    return f'{_STYLE}<pre class="za-plain">{escape(text)}</pre><div class="za" style="display:none">{card}</div>'


def _lines(title: str, facts: Mapping[str, str]) -> str:
    return "\n".join([*([title] if title else ()), *(f"{name}: {text}" for name, text in facts.items())])


def _body(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that are not in the head of a card, first those about values, then those about storage."""
    names = [
        name for name in facts if name not in ("Name", "Type", "Attributes", "Data type", "Shape", "Dimension names")
    ]
    return {name: facts[name] for name in sorted(names, key=_STORAGE.__contains__)}


def _value_facts(metadata: ArrayMetadata) -> dict[str, str]:
    """Return the dimensions of an array, its auxiliary coordinates, and the fields of its elements."""
    names, dtype = axis_names(metadata), metadata.dtype.numpy
    coordinates = metadata.attributes.get("coordinates")
    fields = _fields(dtype)
    facts = {
        "Dimensions": ", ".join(
            f"{name or f'axis {axis}'} {size:,}"
            for axis, (name, size) in enumerate(zip(names, metadata.shape, strict=True))
        )
        if names is not None
        else "",
        "Coordinates": ", ".join(coordinates.split()) if isinstance(coordinates, str) else "",
        "Fields": ", ".join(fields[:_MAX_FIELDS])
        + (f", … {len(fields) - _MAX_FIELDS:,} more" * (len(fields) > _MAX_FIELDS)),
    }
    return {name: text for name, text in facts.items() if text}


def _fields(dtype: np.dtype[Any]) -> list[str]:
    """Return the names and data types of the fields of a structured data type, with inner fields in parentheses."""
    return [
        f"{name} ({', '.join(_fields(dtype[name]))})" if dtype[name].names else f"{name} {str(dtype[name]).lstrip('|')}"
        for name in dtype.names or ()
    ]


def _table(items: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in items.items())
    return f'<table class="za-facts"><tbody>{rows}</tbody></table>'


def _attributes(attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return ""
    text = json.dumps(attributes, indent=2, ensure_ascii=False, default=str)
    if len(text) > _MAX_ATTRIBUTE_CHARACTERS:  # a notebook file contains all output
        text = f"{text[:_MAX_ATTRIBUTE_CHARACTERS]}\n… {size_text(len(text) - _MAX_ATTRIBUTE_CHARACTERS)} more"
    return f"<details><summary>{counted(len(attributes), 'attribute')}</summary><pre>{escape(text)}</pre></details>"


def _branches(nodes: Mapping[str, ArrayMetadata | GroupMetadata], failures: Mapping[str, str]) -> str:
    """Return nodes by path as items of nested HTML lists."""
    members_of: dict[str, list[str]] = {}
    ranked = sorted(nodes.keys() | failures.keys(), key=lambda path: (path.count("/"), path))
    for path in sorted(ranked[:_MAX_NODES]):
        members_of.setdefault(path.rpartition("/")[0], []).append(path)
    unfolded = " open" if len(nodes) <= _MAX_UNFOLDED else ""

    def branch(parent: str) -> str:
        return "".join(item(path) for path in members_of.get(parent, ()))

    def item(path: str) -> str:
        node, name = nodes.get(path), escape(path.rpartition("/")[2])
        if isinstance(node, ArrayMetadata):
            return _leaf(name, f" <code>{escape(f'{node.shape} {node.dtype.name}')}</code>", _chunk_text(node))
        if path in failures:
            return _leaf(name, "", f"unreadable: {failures[path]}")
        if path not in members_of:
            return _leaf(name, "", "empty group")
        return f"<li><details{unfolded}><summary><b>{name}</b></summary><ul>{branch(path)}</ul></details></li>"

    rest = len(nodes) - _MAX_NODES
    return branch("") + (f'<li><span class="za-leaf za-dim">{rest:,} more</span></li>' if rest > 0 else "")


def _leaf(name: str, code: str, note: str) -> str:
    return f'<li><span class="za-leaf"><b>{name}</b>{code} <span class="za-dim">{escape(note)}</span></span></li>'


def _chunk_text(metadata: ArrayMetadata) -> str:
    return f"chunks {metadata.chunks}" + (f" in shards {metadata.shards}" if metadata.shards else "")
