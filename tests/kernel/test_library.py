"""Finding and loading the kernel, and what the settings say about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zarrasync as za
from zarrasync._kernel import library

SOURCES = Path(library.__file__).parent
needs_kernel = pytest.mark.skipif(za.Config().kernel != "active", reason=za.Config().kernel)


def run(code: str, package: Path, **environment: str) -> str:
    """Run code with the kernel's package in another folder."""
    prepared = f"import zarrasync._kernel as k; k.__path__[:] = [{str(package)!r}]; {code}"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES.parent.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-c", prepared], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the kernel's package, as a checkout has it."""
    return Path(shutil.copytree(SOURCES, tmp_path / "_kernel", ignore=shutil.ignore_patterns("__pycache__", ".build*")))


DESCRIBE = "import zarrasync; print(zarrasync.config.get().kernel)"
LOAD = """
from zarrasync import config
from zarrasync._kernel.library import kernel
print(kernel(config.get().native) is not None)
"""


def test_the_versions_of_the_interface_agree():
    if not (SOURCES / "kernel.h").exists():
        pytest.skip("this installation has no sources")
    assert re.findall(r"#define KERNEL_ABI (\d+)", (SOURCES / "kernel.h").read_text()) == [str(library.ABI)]


@needs_kernel
def test_modes():
    assert library.kernel("auto") is library.kernel("require") is not None
    assert library.kernel("off") is None
    with za.config.set(native="off"):
        assert library.kernel(za.config.get().native) is None
        assert za.config.get().kernel == "not active: the setting native is 'off'"


def test_the_setting_is_checked():
    with pytest.raises(ValueError, match="config native must be 'auto', 'off' or 'require', found 'on'"):
        za.Config(native="on")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.processes
@needs_kernel
@pytest.mark.parametrize("mode", ["auto", "off", "require"])
def test_the_environment_decides(package, mode):
    assert run(LOAD, package, ZARRASYNC_NATIVE=mode) == str(mode != "off")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("missing", "this installation has no compiled kernel"),
        ("stale", "older than its sources; run `make kernel`"),
        ("other file", "the compiled kernel cannot be loaded"),
        ("other interface", "has version 1234 of the interface, and this zarrasync needs version"),
    ],
)
def test_a_kernel_that_cannot_be_used(package, damage, reason):
    for path in package.glob("*kernel.*[!h]"):
        path.unlink()
    target = package / library._NAME
    if damage == "stale":
        if not [*package.glob("*.[ch]")]:
            pytest.skip("this installation has no sources")
        target.touch()
        newest = max(path.stat().st_mtime for path in package.glob("*.[ch]"))
        os.utime(target, (newest - 1, newest - 1))
    elif damage == "other file":
        target.write_bytes(b"\x7fELF of another machine")
    elif damage == "other interface":
        if shutil.which("cc") is None:
            pytest.skip("there is no compiler")
        source = package / "other.c"
        source.write_text("unsigned zarrasync_kernel_abi(void) { return 1234; }")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", target, source], check=True)
    assert reason in run(DESCRIBE, package, ZARRASYNC_NATIVE="auto")
    assert run(LOAD, package, ZARRASYNC_NATIVE="auto") == "False"
    message = run(LOAD, package, ZARRASYNC_NATIVE="require")
    assert message.startswith("ImportError: the setting native is 'require', but ")
    assert reason in message


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_the_command_line_describes_it(mode):
    done = subprocess.run(
        [sys.executable, "-m", "zarrasync", "--version"],
        env={**os.environ, "ZARRASYNC_NATIVE": mode},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"zarrasync {za.__version__} (compiled kernel: {za.Config(native=mode).kernel})\n"
