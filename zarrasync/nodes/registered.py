"""Methods of nodes and selections that integrations register, because nodes import nothing above them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import compute, run_in_new_thread
from zarrasync._util import plugins


async def call_method(target: Any, kind: str, name: str, extra: str, options: Mapping[str, Any]) -> Any:
    """Call a function that an integration has registered as a method, on a thread because it blocks.

    Args:
        target: The node or the selection.
        kind: Its kind, with which the name of the entry point begins.
        name: The name of the method.
        extra: The extra that installs its requirements.
        options: Its arguments.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        function = await compute(partial(plugins.find, plugins.METHODS, f"{kind}_{name}"))
    except ImportError as error:
        raise ImportError(f"{name}() cannot be imported: {error}; pip install 'zarrasync[{extra}]'") from error
    if function is None:
        raise ImportError(
            f"no installed package provides {name}(); install it again with pip install 'zarrasync[{extra}]'"
        )
    call = partial(function, target, **options)
    return call() if driven() else await run_in_new_thread(call)
