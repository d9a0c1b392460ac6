"""The build hook: wheels with the kernel, without it, and editable installations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT
from zarrasync._kernel import library

pytestmark = pytest.mark.processes

pytest.importorskip("hatchling")
if not (ROOT / "pyproject.toml").exists():
    pytest.skip("this is not a checkout", allow_module_level=True)
HERE = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
WARNING = "warning: zarrasync has no compiled kernel, and is slower: "


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The kernel's package and the files of the project that its build reads."""
    folder = tmp_path / "project"
    ignore = shutil.ignore_patterns("*.so", "*.dylib", "*.dll", "__pycache__", ".build-*")
    shutil.copytree(library._FOLDER, folder / "zarrasync" / "_kernel", ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", "zarrasync/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(project: Path, kind: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build as pip does, with the hatchling of this environment."""
    code = f"import hatchling.build as h; print(h.build_{kind}('dist'))"
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "PYTHONPATH")}
    environment = {**kept, "ZARRASYNC_NATIVE": "auto", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def built(project: Path, kind: str = "wheel", **environment: str) -> tuple[str, list[str], str]:
    """Return the tag of a wheel, the names of the kernel's files in it, and the warnings."""
    done = build(project, kind, **environment)
    assert done.returncode == 0, done.stderr
    name = done.stdout.splitlines()[-1]
    with zipfile.ZipFile(project / "dist" / name) as wheel:
        files = [entry.removeprefix("zarrasync/_kernel/") for entry in wheel.namelist() if "_kernel/" in entry]
        (metadata,) = (entry for entry in wheel.namelist() if entry.endswith("/WHEEL"))
        pure = b"Root-Is-Purelib: true" in wheel.read(metadata)
    tag = name.removesuffix(".whl").split("-", 2)[2]
    assert pure == (tag == "py3-none-any")
    return tag, files, done.stderr


PYTHON_FILES = {"__init__.py", "library.py", "symbols.py"}


@needs_compiler
def test_with_a_compiler(project):
    tag, files, warnings = built(project, ZARRASYNC_NATIVE="require")
    assert tag == HERE
    assert {library._NAME} | PYTHON_FILES <= {*files}
    assert not [name for name in files if name.endswith((".c", ".h", "build.py"))]
    assert warnings == ""
    # What is built for another place leaves the sources as they are.
    assert not (project / "zarrasync" / "_kernel" / library._NAME).exists()


@pytest.mark.parametrize("compiler", ["missing", "failing", "off"])
def test_without_a_kernel(project, tmp_path, compiler):
    environment = {
        "missing": {"PATH": str(tmp_path)},
        "failing": {"CC": f"{sys.executable} -c exit('fatal_error:1')"},
        "off": {"ZARRASYNC_NATIVE": "off"},
    }[compiler]
    tag, files, warnings = built(project, **environment)
    assert tag == "py3-none-any"
    assert {*files} >= PYTHON_FILES
    assert library._NAME not in files
    if compiler == "off":
        assert warnings == ""
    else:
        assert warnings.count(WARNING) == 1


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_required_kernel(project, tmp_path, kind):
    done = build(project, kind, ZARRASYNC_NATIVE="require", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "ZARRASYNC_NATIVE is 'require', but the kernel cannot be compiled: " in done.stderr
    assert "'cc'" in done.stderr
    done = build(project, kind, ZARRASYNC_NATIVE="yes")
    assert done.returncode == 1
    assert done.stderr == "ZARRASYNC_NATIVE must be 'auto', 'off' or 'require', found 'yes'\n"


@needs_compiler
def test_an_error_in_a_source(project):
    (project / "zarrasync" / "_kernel" / "wrong.c").write_text("int f(void) { return undeclared; }")
    tag, _, warnings = built(project)
    assert tag == "py3-none-any"
    assert WARNING in warnings
    assert "undeclared" in warnings
    done = build(project, "wheel", ZARRASYNC_NATIVE="require")
    assert done.returncode == 1
    assert "wrong.c:1" in done.stderr.splitlines()[-1]


@needs_compiler
@pytest.mark.parametrize(
    ("platform", "name"),
    [("win_amd64", "kernel.dll"), ("macosx_11_0_arm64", "libkernel.dylib"), ("manylinux_2_17_x86_64", "libkernel.so")],
)
def test_a_wheel_for_another_platform(project, platform, name):
    tag, files, _ = built(project, ZARRASYNC_PLATFORM=platform, ZARRASYNC_NATIVE="require")
    assert tag == f"py3-none-{platform}"
    assert name in files


@needs_compiler
def test_editable(project):
    """The kernel of an editable installation is compiled in place, and again if a source has changed."""
    tag, files, _ = built(project, "editable", ZARRASYNC_NATIVE="require")
    assert (tag, files) == ("py3-none-any", [])
    kernel = project / "zarrasync" / "_kernel" / library._NAME
    first = kernel.stat()
    built(project, "editable", ZARRASYNC_NATIVE="require")
    assert kernel.stat().st_ino == first.st_ino
    source = kernel.parent / "version.c"
    os.utime(source, ns=(first.st_mtime_ns + 1, first.st_mtime_ns + 1))
    built(project, "editable", ZARRASYNC_NATIVE="require")
    assert kernel.stat().st_ino != first.st_ino
    assert kernel.stat().st_mtime_ns == first.st_mtime_ns + 1
    assert {path.name for path in kernel.parent.iterdir() if path.name.startswith(".build")} == set()


def test_the_sdist_contains_the_sources(project):
    done = build(project, "sdist")
    assert done.returncode == 0, done.stderr
    with tarfile.open(project / "dist" / done.stdout.splitlines()[-1]) as archive:
        names = {Path(name).name for name in archive.getnames() if "/_kernel/" in name}
    sources = {path.name for path in library._FOLDER.glob("*.[ch]")} | {"build.py"}
    assert sources <= names
    assert library._NAME not in names


@needs_compiler
def test_pointers_have_64_bits():
    """Python describes pointers so. On other platforms, the kernel is not compiled, and the package is pure Python."""
    header = str(library._FOLDER / "kernel.h")
    options = ["-m32", "-std=c11", "-ffreestanding", "-fsyntax-only", "-x", "c"]
    done = subprocess.run(["cc", *options, header], capture_output=True, text=True, check=False)
    if "-m32" in done.stderr:
        pytest.skip("the compiler has no target with other pointers")
    assert done.returncode == 1
    assert "pointers of 64 bits" in done.stderr
