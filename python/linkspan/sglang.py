"""SGLang's `--disaggregation-transfer-backend linkspan`: its NIXL with the plugin LINKSPAN.

The package's entry point in the group sglang.srt.plugins: SGLang calls register() early in each of
its processes. integrations/sglang/README.md says how to use it. Importing this imports no SGLang.
Threads: externally synchronised, as SGLang loads plugins.
"""

from __future__ import annotations

import os
from typing import Any, Callable

__all__ = ["register"]

_WORD = "linkspan"
_BACKEND = "LINKSPAN"
_VARIABLE = "SGLANG_DISAGGREGATION_NIXL_BACKEND"


def register() -> None:
    """Adds the word to the choices of the option, and what it stands for."""
    from sglang.srt.arg_groups.choices import add_disagg_transfer_backend_choices
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    add_disagg_transfer_backend_choices([_WORD])
    register_resolution_hook("handle_pd_disaggregation")(_resolve)


def _resolve(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Turns the word into NIXL, before SGLang checks the backend. Its later processes inherit the
    variable. ValueError: the variable names another backend."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    if resolving_view(server_args).disaggregation_transfer_backend == _WORD:
        backend = os.environ.setdefault(_VARIABLE, _BACKEND)
        if backend != _BACKEND:
            raise ValueError(
                f"{_VARIABLE}={backend!r} contradicts --disaggregation-transfer-backend {_WORD}:"
                " unset it, or choose nixl"
            )
        declare_resolution(server_args, _WORD, disaggregation_transfer_backend="nixl")
    previous(server_args)
