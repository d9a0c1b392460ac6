"""A wheel, installed into a new environment, runs the first example of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]

pytest.importorskip("hatchling")
if not (ROOT / "pyproject.toml").exists():
    pytest.skip("this is not a checkout", allow_module_level=True)


def run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and with the requirements of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build as h; print(h.build_wheel({str(folder / 'dist')!r}))"
    wheel = folder / "dist" / run(sys.executable, "-c", code, cwd=ROOT).splitlines()[-1]
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    # Requirements are found in this environment, whose own checkout of zarrasync comes after the installed package.
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    home = Path(run(python, "-I", "-c", "import zarrasync; print(zarrasync.__file__)").strip())
    assert home.is_relative_to(packages)
    return python


def test_the_first_example_of_the_readme_runs(python: Path, tmp_path: Path):
    text = (ROOT / "README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert "create_array" in example
    (tmp_path / "first.py").write_text(example)
    printed = run(python, "-I", "first.py", cwd=tmp_path)
    assert "t2m" in printed
    assert (tmp_path / "weather.zarr" / "t2m" / "zarr.json").exists()


def test_the_command_line_is_installed(python: Path, tmp_path: Path):
    version = run(python.parent / "zarrasync", "--version", cwd=tmp_path)
    assert re.match(r"zarrasync \d+\.\d+", version)
    listed = run(python.parent / "zarrasync", "--help", cwd=tmp_path)
    assert "ingest" in listed


def test_packages_are_complete(python: Path):
    """Modules, the marker of types, and the files of the viewer."""
    code = "import zarrasync, pathlib; p = pathlib.Path(zarrasync.__file__).parent; print(*sorted(str(f.relative_to(p)) for f in p.rglob('*')), sep='\\n')"
    installed = {line.replace(os.sep, "/") for line in run(python, "-I", "-c", code).splitlines()}
    tracked = run("git", "ls-files", "zarrasync", cwd=ROOT).splitlines()
    expected = {
        name.removeprefix("zarrasync/") for name in tracked if not re.search(r"_kernel/.*\.[ch]$|build\.py$", name)
    }
    assert expected - installed == set()
    assert "py.typed" in installed
