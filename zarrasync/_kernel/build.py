"""Compile the kernel: as a hook of hatchling, or in place with ``python zarrasync/_kernel/build.py``.

Environment variables:
    ZARRASYNC_NATIVE: ``auto`` (without a compiler, the package is pure Python), ``off``, or ``require`` (no compiler is an
        error).
    CC, CFLAGS: The compiler and its additional options. A cross compiler needs ZARRASYNC_PLATFORM.
    ZARRASYNC_PLATFORM: The platform tag of the wheel, such as ``macosx_11_0_arm64``.

This file runs before the package is installed, so it imports nothing but the standard library and hatchling.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FLAGS = "-std=c11 -O3 -fPIC -shared -fvisibility=hidden -Wall -Wextra"


def platform_tag() -> str:
    """Return the platform tag of wheels."""
    name = os.environ.get("ZARRASYNC_PLATFORM") or sysconfig.get_platform().replace(".", "_")
    return name.replace("universal2", platform.machine()).replace("-", "_")


def library_name(tag: str) -> str:
    """Return the name of the library on a platform. It must agree with ``library.py``."""
    return "kernel.dll" if tag.startswith("win") else "libkernel.dylib" if tag.startswith("macosx") else "libkernel.so"


def build(folder: Path) -> Path | None:
    """Compile the kernel as ``ZARRASYNC_NATIVE`` demands.

    Returns:
        The library, or ``None`` without a kernel.

    Raises:
        SystemExit: If the kernel is required and cannot be compiled.
    """
    mode = os.environ.get("ZARRASYNC_NATIVE", "auto")
    if mode not in ("auto", "off", "require"):
        raise SystemExit(f"ZARRASYNC_NATIVE must be 'auto', 'off' or 'require', found {mode!r}")
    if mode == "off":
        return None
    try:
        return compile_kernel(folder)
    except OSError as error:
        if mode == "require":
            raise SystemExit(f"ZARRASYNC_NATIVE is 'require', but the kernel cannot be compiled: {error}") from None
        sys.stderr.write(f"warning: zarrasync has no compiled kernel, and is slower: {error}\n")
        return None


def compile_kernel(folder: Path) -> Path:
    """Compile all C files into one shared library, unless the folder has one of the same sources.

    Raises:
        OSError: If the compiler does not exist, or reports an error.
    """
    target = folder / library_name(platform_tag())
    newest = max(path.stat().st_mtime_ns for path in HERE.glob("*.[ch]"))
    if target.exists() and target.stat().st_mtime_ns == newest:
        return target
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        output = Path(scratch) / target.name
        options = shlex.split(f"{FLAGS} {os.environ.get('CFLAGS', '')}")
        compiler = shlex.split(os.environ.get("CC") or "cc")
        command = [*compiler, *options, "-o", str(output), *sorted(map(str, HERE.glob("*.c")))]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603  # the user's compiler
        sys.stderr.write(done.stderr)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error:" in line]
            raise OSError(f"{compiler[0]}: {errors[0] if errors else f'exit status {done.returncode}'}")
        os.utime(output, ns=(newest, newest))  # so that a source that changed meanwhile is newer
        output.replace(target)
    return target


def get_build_hook() -> type:
    """Return the hook. hatchling calls this function."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class KernelHook(BuildHookInterface[Any]):
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self.target_name != "wheel":
                return
            if version == "editable":
                build(HERE)
                return
            self._folder = tempfile.TemporaryDirectory()
            library = build(Path(self._folder.name))
            if library is not None:
                build_data["force_include"][str(library)] = f"zarrasync/_kernel/{library.name}"
                build_data.update(pure_python=False, tag=f"py3-none-{platform_tag()}")

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            if self.target_name == "wheel" and version != "editable":
                self._folder.cleanup()

    return KernelHook


if __name__ == "__main__":
    build(HERE)
