"""How arrays, groups, hierarchies and selections show themselves in notebooks. Nothing here does IO."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from zarrasync.display.info import Info, counted, size_text
from zarrasync.display.svg import draw
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata

if TYPE_CHECKING:
    from zarrasync.nodes.selection import Explanation

__all__ = ["array", "explanation", "group", "info", "tree"]

# Colours come from the page: text and lines are what is written in, and what is touched has a colour that stands
# out on white and on black.
_STYLE = """<style>
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
.za-picture{flex:none;max-width:100%}.za-picture text{font-size:11px;fill:currentColor;opacity:.85;
font-family:system-ui,sans-serif}
.za-box{fill:color-mix(in srgb,currentColor 6%,transparent);stroke:currentColor;stroke-width:1}
.za-chunk{stroke:currentColor;stroke-width:.6;opacity:.38;fill:none}
.za-shard{stroke:currentColor;stroke-width:1.4;opacity:.85;fill:none}
.za-hit{fill:#e8743b;fill-opacity:.72}
.za-tree ul{list-style:none;margin:0;padding-left:18px}.za-tree>ul{padding:8px 14px 10px}
.za-tree li{margin:1px 0}.za-tree details{padding:0}.za-tree code{font-size:12px;background:none;color:inherit}
.za-tree summary,.za-leaf{font-size:13px}.za-leaf{padding-left:15px;display:block}
.za-search{float:right;font:inherit;font-size:12px;padding:1px 6px;width:13em;color:inherit;background:transparent;
border:1px solid color-mix(in srgb,currentColor 30%,transparent);border-radius:4px}
</style>"""

_SEARCH = (
    "const q=this.value.toLowerCase(),r=this.closest('.za-tree');"
    "r.querySelectorAll('li').forEach(l=>{l.style.display=l.textContent.toLowerCase().includes(q)?'':'none';"
    "if(q&&l.firstElementChild.tagName==='DETAILS')l.firstElementChild.open=true})"
)
_LONGEST = 20_000
"""Characters of attributes that are shown."""
_MOST = 500
"""Nodes of a hierarchy that are shown."""
_OPEN = 60
"""Trees of at most so many nodes are shown unfolded."""


def array(metadata: ArrayMetadata, facts: Info, name: str) -> str:
    """The card of an array."""
    head = f"{metadata.shape} {metadata.dtype.name}"
    return _card("Array", name, head, _facts(_rest(facts)) + draw(metadata), _attributes(metadata.attributes))


def group(
    metadata: GroupMetadata,
    facts: Info,
    name: str,
    members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]] | None,
) -> str:
    """The card of a group.

    Args:
        metadata: The group's metadata.
        facts: Its facts.
        name: Its name.
        members: What lies below, where that is known without asking the store.
    """
    if members is None:
        known, below = "members are listed by .tree()", ""
    else:
        known, below = counted(len(members), "node") + " below", _branches(dict(members))
        below = f'<div class="za-tree"><ul>{below}</ul></div>' if below else ""
    return _card("Group", name, known, _facts(_rest(facts)), _attributes(metadata.attributes) + below)


def info(facts: Info) -> str:
    """Facts as a table."""
    return f'{_STYLE}<div class="za"><div class="za-card"><div class="za-body">{_facts(facts.items)}</div></div></div>'


def tree(name: str, members: Sequence[tuple[str, ArrayMetadata | GroupMetadata]]) -> str:
    """A hierarchy that unfolds, with a field to search it."""
    search = (
        f'<input class="za-search" type="search" placeholder="search" aria-label="search the tree" '
        f'oninput="{escape(_SEARCH)}">'
        if len(members) > 3
        else ""
    )
    arrays = sum(isinstance(node, ArrayMetadata) for _, node in members)
    counts = f"{counted(arrays, 'array')}, {counted(len(members) - arrays, 'group')}"
    return (
        f'{_STYLE}<div class="za"><div class="za-card za-tree"><div class="za-head"><b>{escape(name)}</b> '
        f"<span>{counts}</span>{search}</div><ul>{_branches(dict(members))}</ul></div></div>"
    )


def explanation(found: Explanation, title: str) -> str:
    """What a selection touches: numbers and a picture."""
    total = found.metadata.read_grid.size
    facts = {
        "Chunks": f"{found.chunks:,} of {total:,}",
        "Shards": "" if found.shards is None else f"{found.shards:,} of {found.metadata.grid.size:,}",
        "Requests": found.asked.replace(" requests", "").replace(" request", ""),
        "Decoded": size_text(found.decoded_bytes),
        "Result": f"{size_text(found.result_bytes)} ({found.used} of what is decoded)",
    }
    facts = {name: text for name, text in facts.items() if text}
    picture = draw(found.metadata, found.coverage if found.chunks else None)
    return _card(title, found.name, f"{found.shape} {found.dtype}", _facts(facts) + picture, "")


def _card(kind: str, name: str, head: str, body: str, more: str) -> str:
    return (
        f'{_STYLE}<div class="za"><div class="za-card"><div class="za-head"><b>{kind} {escape(name)}</b> '
        f'<span>{escape(head)}</span></div><div class="za-body">{body}</div>{more}</div></div>'
    )


def _rest(facts: Info) -> dict[str, str]:
    """The facts that the head of a card does not tell."""
    return {name: text for name, text in facts.items.items() if name not in ("Name", "Type", "Attributes")}


def _facts(items: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in items.items())
    return f'<table class="za-facts"><tbody>{rows}</tbody></table>'


def _attributes(attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return ""
    text = json.dumps(attributes, indent=2, ensure_ascii=False, default=str)
    if len(text) > _LONGEST:  # what is shown is kept in the notebook
        text = f"{text[:_LONGEST]}\n… {size_text(len(text) - _LONGEST)} more"
    return f"<details><summary>{counted(len(attributes), 'attribute')}</summary><pre>{escape(text)}</pre></details>"


def _branches(known: Mapping[str, ArrayMetadata | GroupMetadata]) -> str:
    """The nodes as nested lists."""
    below: dict[str, list[str]] = {}
    ranked = sorted(known, key=lambda path: (path.count("/"), path))
    for path in sorted(ranked[:_MOST]):
        below.setdefault(path.rpartition("/")[0], []).append(path)
    unfolded = " open" if len(known) <= _OPEN else ""

    def branch(above: str) -> str:
        items = []
        for path in below.get(above, ()):
            node, name = known[path], escape(path.rpartition("/")[2])
            if isinstance(node, ArrayMetadata):
                text = escape(f"{node.shape} {node.dtype.name}")
                chunks = escape(f"chunks {node.chunks}" + (f" in shards {node.shards}" if node.shards else ""))
                items.append(
                    f'<li><span class="za-leaf"><b>{name}</b> <code>{text}</code> <span class="za-dim">{chunks}</span></span></li>'
                )
            elif path in below:
                items.append(
                    f"<li><details{unfolded}><summary><b>{name}</b></summary><ul>{branch(path)}</ul></details></li>"
                )
            else:
                items.append(
                    f'<li><span class="za-leaf"><b>{name}</b> <span class="za-dim">empty group</span></span></li>'
                )
        return "".join(items)

    more = f'<li><span class="za-leaf za-dim">{len(known) - _MOST:,} more</span></li>' if len(known) > _MOST else ""
    return branch("") + more
