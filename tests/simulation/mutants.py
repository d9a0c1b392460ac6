"""Planted bugs: each is made in a copy of the package, and the simulations must find it.

``python -m tests.simulation.mutants`` prints which seed found each of them. Names of mutants as arguments choose some. Most
bugs in Python must be found with the compiled kernel and without it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from tests.support.planting import plant

__all__ = ["CASES", "MUTANTS", "Mutant", "find"]


class Mutant(NamedTuple):
    """A bug.

    Attributes:
        name: What is wrong.
        scenario: The scenario that should find it.
        module: The file, relative to the package.
        old: What is replaced, which occurs once.
        new: What replaces it.
        kernel: The settings of ``--kernel`` with each of which it is found.
        seeds: Within how many seeds it is found.
    """

    name: str
    scenario: str
    module: str
    old: str
    new: str
    kernel: tuple[str, ...] = ("on", "off")
    seeds: int = 300


MUTANTS = [
    Mutant(
        "partial writes do not compare versions",
        "arrays",
        "transfer/write_chunks.py",
        "await self._store.put(key, data, if_version=ABSENT if value is None else value.version)",
        "await self._store.put(key, data)",
    ),
    Mutant(
        "changes of metadata do not compare versions",
        "arrays",
        "nodes/base.py",
        "partial(put_documents, store, changed, before.versions)",
        "partial(put_documents, store, changed, {})",
    ),
    Mutant(
        "a change is made from old metadata with the new version",
        "arrays",
        "nodes/base.py",
        "present = cached if cached is not None else await self._load()",
        "present = cached if cached is not None else replace(self.metadata, source=(await self._load()).source)",
    ),
    Mutant(
        "a write whose answer was lost is repeated without looking for its mark",
        "arrays",
        "stores/remote.py",
        "            if current.mark == mark:\n                return current.version\n            failure = unknown.failure\n"
        "            if current.version != expected and unknown.answered:\n",
        "            failure, version = unknown.failure, current.version\n            expected = version\n"
        "            if current.version != expected and unknown.answered:\n",
    ),
    Mutant(
        "a conflict with an own write is taken for another writer's",
        "arrays",
        "stores/remote.py",
        "if current is not None and current.mark == mark:",
        "if unknown is not None and current is not None and current.mark == mark:",
    ),
    Mutant(
        "a cancelled write is not waited for",
        "arrays",
        "stores/remote.py",
        "return await (shielded(attempt) if verb in _CHANGES else attempt())",
        "return await attempt()",
        seeds=3000,
    ),
    Mutant(
        "a lock of files is released early",
        "arrays",
        "stores/local_locks.py",
        "                self._bytes.append((file, position))",
        "                self._bytes.append((file, position))\n                unlock_byte(file, position)",
    ),
    Mutant(
        "a cached shard index is believed although the shard has changed",
        "shards",
        "transfer/shard_search.py",
        "if value is None or (self.version is not None and value.version != self.version):",
        "if value is None:",
    ),
    Mutant(
        "appends to object stores do not reserve rows",
        "arrays",
        "nodes/append_resize.py",
        "if store.checks_bounds or (store.conditional and not store.exclusive_locks):",
        "if store.checks_bounds:",
    ),
    Mutant(
        "appends to files publish the shape before the rows",
        "arrays",
        "nodes/append_resize.py",
        "if store.checks_bounds or (store.conditional and not store.exclusive_locks):",
        "if store.checks_bounds or store.conditional:",
        seeds=3000,
    ),
    Mutant(
        "no note is left of rows beyond the shape",
        "arrays",
        "nodes/append_resize.py",
        "await _set_pending(handle, _pending_note(grown))",
        "pass",
        seeds=3000,
    ),
    Mutant(
        "a partial write forgets the rest of the chunk",
        "arrays",
        "transfer/write_chunks.py",
        "data = await self._merge(part, None if value is None else value.data, compute)\n            try:",
        "data = await self._merge(part, None, compute)\n            try:",
    ),
    Mutant(
        "a value is renamed before it is written",
        "arrays",
        "stores/local.py",
        "                    write_fully(handle, data)\n",
        "                    if if_version is None:\n                        os.link(temporary, path) if not os.path.exists(path) else None\n"
        "                    write_fully(handle, data)\n",
    ),
    Mutant(
        "waiters are not woken when a request ends",
        "arrays",
        "_concurrency/semaphores.py",
        "            self._free += amount\n            if self._waiters:\n                self._admit()",
        "            self._free += amount",
    ),
    Mutant(
        "requests do not wait for others to end",
        "arrays",
        "_concurrency/semaphores.py",
        "is_free = not self._waiters and (amount <= self._free or self._free == self.capacity)",
        "is_free = True",
    ),
    Mutant(
        "parts of chunks are written where versions cannot be compared",
        "unconditional",
        "transfer/unaligned.py",
        "is_allowed(chunks.config.unaligned, safe=chunks.store.safe_updates)",
        "is_allowed(chunks.config.unaligned, safe=True)",
    ),
    Mutant(
        "a smaller shape leaves chunks outside",
        "resizes",
        "nodes/append_resize.py",
        "        await chunks.store.erase_values(batch)",
        "        pass",
    ),
    Mutant(
        "a smaller shape leaves values in chunks at its edge",
        "resizes",
        "nodes/append_resize.py",
        "            await fill_box(chunks, tuple(box))",
        "            pass",
    ),
    Mutant(
        "two processes may create the same node",
        "creations",
        "nodes/create.py",
        "{marker: ABSENT} if is_conditional else {}",
        "{}",
    ),
    Mutant(
        "a node is stored before the groups above it",
        "creations",
        "nodes/create.py",
        "    if not handle.format.implicit_groups:\n        documents",
        "    await _put_new(creation, creation.documents)\n    if not handle.format.implicit_groups:\n        documents",
    ),
    Mutant(
        "an array is replaced without erasing its chunks",
        "replacements",
        "nodes/erase.py",
        "    await store.erase_prefix(prefix)",
        "    pass",
    ),
    Mutant(
        "consolidated metadata is replaced whatever it is by now",
        "consolidation",
        "nodes/consolidated.py",
        "(ABSENT if stored is None else stored.version) if store.conditional else None",
        "None",
    ),
    Mutant(
        "chunks that an interrupted replacement has left count as ingested",
        "ingestions",
        "nodes/create.py",
        "        await _erase_leftovers(handle, creation.metadata)",
        "        pass",
        seeds=3000,
    ),
    Mutant(
        "chunks that are not stored count as ingested",
        "ingestions",
        "bulk/block_writer.py",
        "        is_stored = self.plan.is_stored(region)",
        "        is_stored = self.plan.is_stored(region) or bool(self.report.skipped)",
    ),
    Mutant(
        "values are not flushed before they are renamed",
        "arrays",
        "stores/local.py",
        "                    if self._fsync:\n                        os.fsync(handle)\n",
        "",
    ),
    Mutant(
        "the kernel stores chunks that have to be flushed, which it does not do",
        "arrays",
        "transfer/chunks.py",
        "not array.can_write or files is None or files.fsync or not self.store.writeable",
        "not array.can_write or files is None or not self.store.writeable",
        ("on",),
    ),
    Mutant(
        "the kernel shows a chunk before its bytes are written",
        "arrays",
        "_kernel/files.c",
        "    int is_written = 1;\n",
        "    int is_written = 1;\n    char shown[ROOM] = {0};\n"
        '    memcpy(shown, name, strcspn(name, "."));\n    system->renameat(folder, name, folder, shown);\n',
        ("on",),
        seeds=4000,
    ),
    Mutant(
        "the kernel ignores a write that fails",
        "arrays",
        "_kernel/files.c",
        "(written == 0 && total > 0))\n            return ZA_FAILED;\n",
        "(written == 0 && total > 0))\n            return content->count;\n",
        ("on",),
        seeds=4000,
    ),
    Mutant(
        "the kernel takes a part of the bytes for all of them",
        "arrays",
        "_kernel/files.c",
        "for (done += written;",
        "for (done += total;",
        ("on",),
    ),
    Mutant(
        "the kernel leaves the file of a write that fails",
        "arrays",
        "_kernel/files.c",
        "    if (!is_written)\n        system->unlinkat(folder, name, 0);\n",
        "",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel leaves the temporary file of a chunk that another process has created",
        "arrays",
        "_kernel/files.c",
        "    if (!is_renamed || !is_stored)\n        system->unlinkat(handle, temporary, 0);\n",
        "",
        ("on",),
    ),
    Mutant(
        "the kernel leaves the folder that another process has created first",
        "arrays",
        "_kernel/files.c",
        "    if (outcome != ZA_PUBLISHED)\n        remove_stage(folder, temporary);\n",
        "",
        ("on",),
    ),
    Mutant(
        "the kernel counts chunks of a folder as stored that another process has created first",
        "arrays",
        "_kernel/write.c",
        "        set_status(write, begin, end, ZA_LATER);\n    }",
        "    }",
        ("on",),
        seeds=1000,
    ),
    Mutant(
        "the kernel takes no lock",
        "shards",
        "_kernel/files.c",
        "return folder->system->lock(lock_file, F_WRLCK, position) == 0 ? position : -1;",
        "return lock_file < 0 ? -1 : position;",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel stores chunks whose lock another process holds",
        "shards",
        "_kernel/files.c",
        "return folder->system->lock(lock_file, F_WRLCK, position) == 0 ? position : -1;",
        "folder->system->lock(lock_file, F_WRLCK, position);\n    return position;",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel unlocks a chunk before it is stored",
        "shards",
        "_kernel/write.c",
        "    if (status == ZA_DONE)\n        status = note_stored(write, za_store_chunk(folder, coords, write->suffix, &write->content, &version));",
        "    za_unlock(folder, write->lock_file, lock);\n    if (status == ZA_DONE)\n"
        "        status = note_stored(write, za_store_chunk(folder, coords, write->suffix, &write->content, &version));",
        ("on",),
    ),
    Mutant(
        "the kernel unlocks another byte than it has locked",
        "arrays",
        "_kernel/files.c",
        "    folder->system->lock(lock_file, F_UNLCK, position);",
        "    folder->system->lock(lock_file, F_UNLCK, position + 1);",
        ("on",),
    ),
    Mutant(
        "the kernel forgets the rest of a chunk that it changes",
        "arrays",
        "_kernel/write.c",
        "        write->old = value;\n        write->old_size = size;\n",
        "        write->old = NULL;\n",
        ("on",),
    ),
    Mutant(
        "the kernel takes a file that cannot be opened for an absent chunk",
        "ingestions",
        "_kernel/files.c",
        "return is_absent ? ZA_NO_FILE : ZA_FAILED;",
        "return ZA_NO_FILE;",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel does not store fill values over others",
        "arrays",
        "_kernel/write.c",
        "status = version.size < 0 ? ZA_DONE : ZA_LEFT;",
        "status = ZA_DONE;",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel counts a chunk as stored that is not renamed",
        "arrays",
        "_kernel/files.c",
        "                    system->renameat(handle, temporary, handle, name) == 0;",
        "                    (system->renameat(handle, temporary, handle, name), 1);",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel removes a chunk before its successor is renamed",
        "arrays",
        "_kernel/files.c",
        "                    system->renameat(handle, temporary, handle, name) == 0;",
        "                    (system->unlinkat(handle, name, 0), system->renameat(handle, temporary, handle, name) == 0);",
        ("on",),
        seeds=3000,
    ),
    Mutant(
        "the kernel uses what is in memory if a read fails",
        "ingestions",
        "_kernel/files.c",
        "        if (count < 0)\n            return ZA_FAILED;\n        done += count;",
        "        if (count < 0)\n            return size;\n        done += count;",
        ("on",),
        seeds=3000,
    ),
]

CASES = [(mutant, kernel) for mutant in MUTANTS for kernel in mutant.kernel]
"""The bugs, each with the settings with which it is found."""


def find(mutant: Mutant, kernel: str) -> str:
    """Run simulations of a copy of the package with a bug. Return what they found, or an empty string."""
    options = [f"--seeds={mutant.seeds}", f"--scenario={mutant.scenario}", f"--kernel={kernel}", "--stop"]
    command = [sys.executable, "-m", "tests.simulation", *options]
    with plant(mutant.module, mutant.old, mutant.new) as environment, tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^seed (\d+): \w+: (.*)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    return f"{found[1]}: {found[2][:80]}" if found else ""


def main(names: list[str]) -> int:
    """Print a table of the mutants; 1 if one was not found."""
    missed = 0
    print("| planted bug | scenario | kernel | found by seed | seconds |\n|---|---|---|---|---|")
    for mutant, kernel in CASES:
        if names and not any(name in mutant.name for name in names):
            continue
        begin = time.monotonic()
        found = find(mutant, kernel)
        missed += not found
        seconds = time.monotonic() - begin
        result = f"{found or '**not found**'} | {seconds:.0f}"
        print(f"| {mutant.name} | {mutant.scenario} | {kernel} | {result} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
