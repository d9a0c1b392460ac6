"""Access to the scripts in ``examples``."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from tests.support import ROOT


def load_example(name: str) -> Any:
    """Import a script from the folder ``examples``."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
