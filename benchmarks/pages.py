"""Writes the measured numbers into the documentation.

    python benchmarks/pages.py

The numbers are in ``docs/measurements/measurements.json``, which the benchmarks write with ``--write-docs``. A page contains
them between ``<!-- measured: NAME -->`` and ``<!-- end -->``, where this script writes the result of ``BLOCKS[NAME]``. A
sentence that the numbers no longer support raises an error: rewrite it.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import ingest
import pipelines
import remote
import report
import s3_requests
import serving
import updates
from harness import MEASUREMENTS, markdown_table
from report import OURS
from tasks import LATENCIES, TITLES
from workloads import QUICK, WORKLOADS

Data = dict[str, Any]
DOCS = MEASUREMENTS.parent.parent
PAGES = sorted(
    [DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("performance/*.md"), *DOCS.glob("measurements/*.md")]
)
BLOCK = re.compile(r"(?<=<!-- measured: )([\w-]+)( -->\n+).*?(?=\n+ *<!-- end -->)", re.DOTALL)
TUNED = "zarr-python fused"
DEFAULTS = (OURS, "zarr-python", "zarrista", "tensorstore")
"""Libraries with their default settings in the remote reads."""
NO_LIBRARIES = (OURS, "zarrasync, S3", "bare aiohttp 256", "requests in C 256", "requests in C 512", "floor")


def render(page: str, data: Data) -> str:
    """Return a page with the numbers of the measurements."""
    return BLOCK.sub(lambda match: f"{match[1]}{match[2]}{BLOCKS[match[1]](data)}", page)


# ---------------------------------------------------------------------- numbers and words


def claim(words: str, *, holds: bool) -> str:
    """Return words of a page if the measurements support them.

    Raises:
        ValueError: If they do not.
    """
    if not holds:
        raise ValueError(f"the measurements do not support {words!r}; rewrite it in benchmarks/pages.py")
    return words


def times(data: Data, workload: str, task: str, section: str = "local") -> dict[str, float]:
    """Return the milliseconds of a row of local files by library."""
    row = next(row for row in data[section]["rows"] if (row["workload"], row["task"]) == (workload, task))
    return {name: result["ms"] for name, result in row["results"].items() if "ms" in result}


def remote_times(data: Data, task: str) -> dict[str, float]:
    """Return the milliseconds of a remote read by library."""
    return {name: result["ms"] for name, result in data["remote"]["rows"][task].items() if "ms" in result}


def seconds(ms: float) -> str:
    return f"{ms / 1000:.2g} s"


def amount(ms: float | None) -> str:
    """Return milliseconds, or microseconds if they are few."""
    if ms is None:
        return "–"
    return f"{ms:,.0f} ms" if ms >= 1 else f"{ms * 1000:,.0f} µs"


def factor(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.2 else f"{ratio:.2f}"


def span(ratios: Iterable[float]) -> str:
    """Return the least and the greatest ratio in words."""
    found = sorted(ratios)
    return " to ".join(dict.fromkeys([factor(found[0]), factor(found[-1])]))


def paragraph(text: str) -> str:
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def bullets(*items: str) -> str:
    """Return a Markdown list."""
    return "\n".join(
        textwrap.fill(f"- {item}", 130, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for item in items
    )


# ---------------------------------------------------------------------- comparisons


def strengths(data: Data) -> str:
    """Speed, safety, and memory in the README."""
    read, lost, field = remote_times(data, "small"), data["updates"]["rows"]["files-chunks"], data["ingest-files"]
    version = data["remote"]["versions"]["zarr-python"].rpartition(".")[0]
    memory = {name: result["peak_mib"] for name, result in field["rows"]["field"].items() if name != "floor"}
    fast = claim("Fast without tuning.", holds=all(read[OURS] <= read[name] for name in DEFAULTS))
    safe = all(row[OURS]["lost"] == 0 for row in data["updates"]["rows"].values())
    safe_words = claim("Concurrent writers lose nothing.", holds=safe and lost["zarr-python"]["lost"] > 0)
    little = claim("Little memory.", holds=memory[OURS] == min(memory.values()))
    count = data["updates"]["processes"] * data["updates"]["writes"]
    return bullets(
        f"**{fast}** 1,024 chunks of 64 KiB from a server {data['remote']['delay_ms']} ms away take {seconds(read[OURS])}. "
        f"zarr-python {version} takes {seconds(read['zarr-python'])} with its defaults and "
        f"{seconds(read['zarr-python 256'])} with 256 concurrent requests. tensorstore takes "
        f"{seconds(read['tensorstore'])} and {seconds(read['tensorstore 256'])}.",
        f"**{safe_words}** In {count:,} updates of shared chunks on local files by {data['updates']['processes']} processes, "
        f"zarrasync lost none and zarr-python lost {lost['zarr-python']['lost']:,}. The same guarantee holds between machines on "
        "S3, Google Cloud Storage, and Azure.",
        f"**{little}** Writing {field['gigabytes']:g} GB into shards of 64 MiB takes {memory[OURS]:,.0f} MiB of memory. "
        f"zarr-python takes {memory['zarr-python']:,.0f} MiB and tensorstore {memory['tensorstore']:,.0f} MiB.",
    )


def behind(data: Data) -> list[list[str]]:
    """Return the rows in which a library is faster than zarrasync: task, our value, its value, and their ratio."""
    rows = []
    for row in data["local"]["rows"]:
        if row["ratio"] and row["ratio"] < 1:
            found, best = times(data, row["workload"], row["task"]), row["best_peer"]
            title = f"{TITLES[row['task']]}: {WORKLOADS[row['workload']].title}"
            rows.append((row["ratio"], title, amount(found[OURS]), f"{amount(found[best])} ({best})"))
    for task in data["remote"]["rows"]:
        found = remote_times(data, task)
        best = min((name for name in found if name not in NO_LIBRARIES), key=found.__getitem__)
        if found[best] < found[OURS]:
            title = f"{remote.TASKS[task]}, {data['remote']['delay_ms']} ms away"
            rows.append((found[best] / found[OURS], title, amount(found[OURS]), f"{amount(found[best])} ({best})"))
    for setting, results in data["updates"]["rows"].items():
        rates = {name: result["per_second"] for name, result in results.items() if result.get("lost") == 0}
        best = max(rates, key=rates.__getitem__)
        if best != OURS:
            ours, theirs = (f"{rates[name]:,.0f}/s" for name in (OURS, best))
            title = f"updates of {data['updates']['processes']} processes: {updates.SETTINGS[setting]}"
            rows.append((rates[OURS] / rates[best], title, ours, f"{theirs} ({best})"))
    for section in ("ingest-files", "ingest-s3"):
        for layout, results in data[section]["rows"].items():
            found = {name: r["s"] for name, r in results.items() if "s" in r and name != "floor"}
            best = min(found, key=found.__getitem__)
            if best != OURS:
                title = f"ingest into {data[section]['place']}: {ingest.TITLES[layout]}"
                rows.append((found[best] / found[OURS], title, f"{found[OURS]:.1f} s", f"{found[best]:.1f} s ({best})"))
    return [[title, ours, theirs, f"{ratio:.2f}"] for ratio, title, ours, theirs in sorted(rows)]


def compared(data: Data) -> int:
    """Return the number of rows that ``behind`` compares."""
    local = sum(row["ratio"] is not None for row in data["local"]["rows"])
    return local + sum(len(data[name]["rows"]) for name in ("remote", "updates", "ingest-files", "ingest-s3"))


def small_chunks(data: Data) -> str:
    """Small chunks and the number of slower rows in the README."""
    read, rows = times(data, "blosc-lz4-tiny", "read"), behind(data)
    ratios = {name: factor(read[name] / read[OURS]) for name in ("zarrista", "tensorstore")}
    return paragraph(
        f"Reading 10,000 local chunks of 1.6 KB takes {amount(read[OURS])}. The compiled libraries zarrista and tensorstore "
        f"take {ratios['zarrista']} and {ratios['tensorstore']} times as long. Other libraries are faster in {len(rows)} of "
        f"{compared(data)} measured tasks. [Performance](docs/performance/index.md) lists all results, and "
        "[Comparison](docs/comparison.md) describes when to use which library."
    )


def overview(data: Data) -> str:
    """The most important rows of the page about performance."""
    local = {
        "read 256 MiB of local 4 MiB chunks, zstd": ("zstd-4m", "read"),
        "read 64 MiB of local 64 KiB chunks, zstd": ("zstd-64k", "read"),
        "read 10,000 local chunks of 1.6 KB, blosc": ("blosc-lz4-tiny", "read"),
        "read 128 MiB of local shards of 4 KiB chunks, blosc": ("shards-4k", "read"),
        "read one element, blosc": ("blosc-lz4-tiny", "element"),
    }
    defaults = (OURS, "zarr-python", "tensorstore")
    columns = (*defaults, TUNED, "tensorstore 256")
    rows = [[title, *(amount(times(data, *key).get(name)) for name in columns)] for title, key in local.items()]
    for task in ("small", "tiny"):
        found = remote_times(data, task)
        cells = [amount(found.get(name)) for name in (*defaults, "zarr-python obstore fused 256", "tensorstore 256")]
        rows.append([f"read {remote.TASKS[task]}, {data['remote']['delay_ms']} ms away", *cells])
    field, lost = data["ingest-files"]["rows"]["field"], data["updates"]["rows"]["files-chunks"]
    cells = [f"{field[name]['s']:.1f} s, {field[name]['peak_mib']:,.0f} MiB" for name in defaults]
    rows.append([f"write {data['ingest-files']['gigabytes']:g} GB into local shards of 64 MiB", *cells, "–", "–"])
    title = f"lost updates of {lost[OURS]['of']:,}, {data['updates']['processes']} processes, local chunks"
    rows.append([title, *(f"{lost[name]['lost']:,}" for name in defaults), "–", "–"])
    return markdown_table(["task", *defaults, "zarr-python, tuned", "tensorstore, tuned"], rows)


def slower(data: Data) -> str:
    """All rows in which another library is faster."""
    rows = behind(data)
    full = [row["ratio"] for row in data["full"]["rows"] if row["ratio"]]
    intro = (
        f"Another library is faster than zarrasync in {len(rows)} of {compared(data)} tasks. [Every codec](codecs.md) "
        f"repeats the local ones with each codec; there it is {sum(ratio < 1 for ratio in full)} of {len(full)}."
    )
    return f"{paragraph(intro)}\n\n{markdown_table(['task', OURS, 'fastest library', 'fastest / ours'], rows)}"


def _of_peers(data: Data, kind: str) -> str:
    """Return each library's mean time over ours for whole reads and writes of one kind."""
    rows = report.kinds(data["local"]["rows"])
    names = {
        "tensorstore": "tensorstore",
        "zarrista": "zarrista",
        "zarr-python": "zarr-python",
        TUNED: "its fused pipeline",
    }
    parts = []
    for name, title in names.items():
        read, write = (
            report.mean(report.ratios_of(rows[f"{task}, chunks of {kind}"], name)) for task in ("read", "write")
        )
        parts.append(f"{title} {factor(read)} and {factor(write)}")
    return ", ".join(parts)


def comparison(data: Data) -> str:
    """The speed of libraries on the page that compares them."""
    remote_rows = [remote_times(data, task) for task in data["remote"]["rows"]]
    wins = sum(all(row[OURS] <= row[name] for name in DEFAULTS if name in row) for row in remote_rows)
    best = sum(all(row[OURS] <= ms for name, ms in row.items() if name not in NO_LIBRARIES) for row in remote_rows)
    tuned = span(row["tensorstore 256"] / row[OURS] for row in remote_rows)
    scattered = [times(data, "zstd-64k", task) for task in ("points", "mask", "orthogonal", "strided", "async")]
    boxes = [times(data, workload, "changes") for workload in ("zstd-64k", "blosc-lz4-tiny")]
    return bullets(
        f"**Remote reads:** zarrasync is the fastest in {wins} of {len(remote_rows)} tasks if all libraries have their default "
        f"settings, and in {best} if the others are configured for 256 concurrent requests. tensorstore then takes {tuned} "
        "times our time.",
        "**Local chunks of 64 KiB and more:** times to read and to write as multiples of ours (geometric means): "
        f"{_of_peers(data, '64 KiB and more')}.",
        f"**Smaller local chunks:** {_of_peers(data, 'less')}. zarrista is a binding of the Rust library zarrs.",
        f"**Scattered elements and many small reads on local files:** tensorstore takes "
        f"{span(row['tensorstore'] / row[OURS] for row in scattered)} times our time.",
        f"**Writes that cut local chunks:** tensorstore takes {span(row['tensorstore'] / row[OURS] for row in boxes)} times our "
        f"time, and zarrista {span(row['zarrista'] / row[OURS] for row in boxes)}. zarrista has no locks between processes.",
    )


# ---------------------------------------------------------------------- conclusions


def _pipeline_ratios(data: Data, peer: str, workloads: Iterable[str], tasks: Iterable[str]) -> str:
    rows = [row for row in data["pipelines"]["rows"] if row["workload"] in workloads and row["task"] in tasks]
    found = [{name: r["ms"] for name, r in row["results"].items() if "ms" in r} for row in rows]
    return span(row[peer] / row[pipelines.OURS] for row in found)


def pipeline_words(data: Data) -> str:
    """The comparison of codec pipelines in words."""
    inner = ("shards-4k", "shards-4k-zstd", "shards-4k-raw")
    reads, boxes, writes = (_pipeline_ratios(data, TUNED, inner, [task]) for task in ("read", "boxes", "write"))
    selections = ("points", "mask", "orthogonal", "strided")
    large = ("raw-4m", "zstd-4m", "blosc-lz4-1m", "v2-F-1m")
    moves = ("read", "write", "memory")
    return bullets(
        f"Local shards with inner chunks of 4 KiB are read {reads} times as fast as with the fused pipeline, boxes inside them "
        f"{boxes} times, and written {writes} times as fast, because the compiled kernel reads and writes whole shards. With "
        f"inner chunks of 128 KiB it is {_pipeline_ratios(data, TUNED, ['shards-128k'], moves)} times.",
        f"Chunks of 64 KiB are read and written {_pipeline_ratios(data, TUNED, ['zstd-64k'], moves)} times as fast, and "
        f"scattered selections {_pipeline_ratios(data, TUNED, ['zstd-64k'], selections)} times.",
        "Chunks of 1 MiB and more spend their time in the codec and in copies: "
        f"{_pipeline_ratios(data, TUNED, large, moves)} times as fast, and {_pipeline_ratios(data, TUNED, ['gzip-1m'], moves)} "
        "times with gzip.",
        "One element, one small chunk, and one inner chunk take most of their time in zarr-python itself: "
        f"{_pipeline_ratios(data, TUNED, WORKLOADS, LATENCIES)} times as fast.",
    )


def remote_words(data: Data) -> str:
    """What the remote reads show."""
    many = [remote_times(data, task) for task in ("small", "tiny")]
    gains = span(row[name] / row[OURS] for row in many for name in DEFAULTS[1:] if name in row)
    cpu = {name: r["cpu_ms"] for name, r in data["remote"]["rows"]["tiny"].items() if "cpu_ms" in r}
    return bullets(
        f"**Defaults.** With default settings on both sides, the other libraries take {gains} times our time for many small "
        "chunks. A server gets 256 requests at first, and up to 512 while it answers quickly. zarrasync remembers the number for "
        "each server.",
        f"**CPU time.** 10,000 small requests cost zarrasync {factor(cpu[OURS] / cpu['bare aiohttp 256'])} times the CPU time of a "
        "bare loop of aiohttp.",
    )


def section(name: str, table: Callable[[Data], str]) -> Callable[[Data], str]:
    """Return a block with a section's date, machine, versions, and table."""
    return lambda data: f"{report.measured(data[name])}\n\n{table(data[name])}"


BLOCKS: dict[str, Callable[[Data], str]] = {
    "strengths": strengths,
    "small-chunks": small_chunks,
    "overview": overview,
    "slower": slower,
    "comparison": comparison,
    "local": lambda data: report.page(data["local"], QUICK),
    "full": lambda data: report.page(data["full"]),
    "pipelines": lambda data: pipelines.page(data["pipelines"]),
    "pipeline-words": pipeline_words,
    "remote": section("remote", remote.table),
    "remote-words": remote_words,
    "requests": section("requests", s3_requests.table),
    "requests-times": section("requests-times", s3_requests.table),
    "updates": section("updates", updates.table),
    "ingest-files": section("ingest-files", ingest.table),
    "ingest-s3": section("ingest-s3", ingest.table),
    "serving": section("serving", serving.table),
    "services": section("services", serving.table),
}


# ---------------------------------------------------------------------- the picture

PICTURE = DOCS / "_static" / "remote-read.svg"
TITLE = "Seconds to read 1,024 chunks of 64 KiB from a server {} ms away"
BARS = {
    OURS: OURS,
    "tensorstore 256": "tensorstore, 256 requests",
    "zarr-python 256": "zarr-python, 256 requests",
    "tensorstore": "tensorstore, defaults",
    "zarr-python": "zarr-python, defaults",
}
GREY, BLUE = "#808790", "#2f7ed8"
"""Colours that can be read on light and on dark pages."""


def picture(data: Data) -> str:
    """Return bars of the time of a remote read as SVG, for the landing page."""
    found = remote_times(data, "small")
    scale = 380 / max(found[name] for name in BARS)
    title = TITLE.format(data["remote"]["delay_ms"])
    font = f'font-family="sans-serif" font-size="13" fill="{GREY}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 176" {font} role="img"><title>{title}</title>',
        f'<text x="0" y="16" font-weight="bold">{title}</text>',
    ]
    for row, (name, label) in enumerate(BARS.items()):
        y, width = 30 + 29 * row, max(found[name] * scale, 2)
        lines += [
            f'<text x="190" y="{y + 15}" text-anchor="end">{label}</text>',
            f'<rect x="200" y="{y}" width="{width:.0f}" height="20" fill="{BLUE if name == OURS else GREY}"/>',
            f'<text x="{206 + width:.0f}" y="{y + 15}">{found[name] / 1000:.2g}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    data = json.loads(MEASUREMENTS.read_text())
    PICTURE.write_text(picture(data))
    for page, text in [(page, render(page.read_text(), data)) for page in PAGES]:
        page.write_text(text)


if __name__ == "__main__":
    main()
