"""Completion in real shells: commands, options, members of stores, and URLs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zarrasync import sync
from zarrasync.cli import main

pytest.importorskip("shtab")

BASH = """
eval "$(zarrasync completion bash)"
compopt() { :; }  # outside of a completion
COMP_LINE=$1 COMP_POINT=${#1}
COMP_WORDS=()
rest=${1//:/ : }  # as Bash splits words at colons
read -ra COMP_WORDS <<<"${rest}"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_zarrasync zarrasync
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "zarrasync completion fish | source; complete -C $argv[1]"


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Path:
    """A working directory with a hierarchy, and the command in the path."""
    monkeypatch.chdir(tmp_path)
    root = sync.create_group("data.zarr")
    for path in ("t2m", "raw/mask", "raw/deep/x"):
        root.create_array(path, shape=3, dtype="i4")
    (tmp_path / "job.plan").touch()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "zarrasync"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m zarrasync "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def complete(shell: str, line: str) -> list[str]:
    """Return the completions of a line, without descriptions."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    arguments = {"bash": ["bash", "-c", BASH, "bash"], "fish": ["fish", "--no-config", "-c", FISH]}[shell]
    done = subprocess.run([*arguments, line], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [word.partition("\t")[0] for word in done.stdout.splitlines() if word]


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("zarrasync att", ["attrs"]),
        ("zarrasync attrs ", ["get", "set"]),
        ("zarrasync tree data.zarr --dep", ["--depth"]),
        ("zarrasync cat data.zarr --format n", ["npy"]),
        ("zarrasync info data.zarr --path ", ["raw/", "t2m"]),
        ("zarrasync info data.zarr --path raw/", ["raw/deep/", "raw/mask"]),
        ("zarrasync mv data.zarr data.zarr --dest-path raw/d", ["raw/deep/"]),
        ("zarrasync attrs set data.zarr --path t", ["t2m"]),
        ("zarrasync info none.zarr --path ", []),
        ("zarrasync ingest pl", ["plan"]),
        ("zarrasync ingest jo", ["job.plan"]),
        ("zarrasync ingest x.nc jo", ["job.plan"]),
        ("zarrasync ingest x.nc y.zarr --concat time --on-d", ["--on-duplicate"]),
        ("zarrasync ingest x.nc y.zarr --ta", []),
        ("zarrasync ingest plan x.nc y.zarr --ta", ["--tasks"]),
        ("zarrasync ingest plan x.nc y.zarr --pl", ["--plan"]),
        ("zarrasync ingest plan x.nc y.zarr --plan jo", ["job.plan"]),
        ("zarrasync ingest plan data.zarr data.zarr --dest-path raw/d", ["raw/deep/"]),
        ("zarrasync ingest run jo", ["job.plan"]),
        ("zarrasync ingest run job.plan --ta", ["--task"]),
        ("zarrasync ingest finish job.plan --ver", ["--verify"]),
    ],
)
def test_words(stored, shell, line, expected):
    assert sorted(complete(shell, line)) == expected


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_urls(stored, shell):
    url = stored.as_uri()
    after_colon = url.partition(":")[2] if shell == "bash" else url  # Bash inserts what follows the colon
    assert complete(shell, f"zarrasync info {url}/da") == [f"{after_colon}/data.zarr/"]
    assert complete(shell, f"zarrasync info {url}/data.zarr --path t") == ["t2m"]


def test_values_of_a_bucket(s3, capsys):
    url, options = s3
    sync.create_array(f"{url}/a.zarr", path="x/t", shape=3, dtype="i4", storage_options=options)
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    assert main(["completion", "values", "info", *words, f"{url}/a"]) == 0
    assert main(["completion", "values", "info", f"{url}/a.zarr", *words, "--path", "x/"]) == 0
    assert main(["completion", "values", "info", f"{url}/none.zarr", *words, "--path", ""]) == 0
    assert main(["completion", "values", "nonsense", "x"]) == 0
    assert capsys.readouterr().out.split() == [f"{url}/a.zarr/", "x/t"]


@pytest.mark.processes
def test_scripts_are_valid(stored):
    checks = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
    for shell in ("bash", "zsh", "fish", "tcsh", "powershell"):
        script = subprocess.run(["zarrasync", "completion", shell], capture_output=True, text=True, check=True).stdout
        assert "validate" in script
        if shell in checks and shutil.which(shell):
            subprocess.run(checks[shell], input=script, text=True, check=True)
