"""vLLM's NixlConnector with NIXL's plugin LINKSPAN, for disaggregated prefill and decode.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "LinkspanConnector",
        "kv_connector_module_path": "linkspan.vllm", "kv_role": "kv_producer"}'

integrations/vllm/README.md says more. Importing this imports no vLLM: the first use of the class
does. Threads: externally synchronised, as vLLM calls its connectors.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["LinkspanConnector"]

_BACKEND = "LINKSPAN"


def __getattr__(name: str) -> Any:
    if name != "LinkspanConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector

    class LinkspanConnector(NixlConnector):
        """Chooses the backend of NixlConnector, which does all else."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            _choose_backend(vllm_config)
            if role == KVConnectorRole.WORKER:
                _check_plugin()
            super().__init__(vllm_config, role, kv_cache_config)

        @classmethod
        def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
            return False  # of NIXL's backends, vLLM has validated it with UCX alone

    LinkspanConnector.__module__, LinkspanConnector.__qualname__ = __name__, "LinkspanConnector"
    return globals().setdefault("LinkspanConnector", LinkspanConnector)


def _choose_backend(vllm_config: Any) -> None:
    """ValueError: the configuration names another backend, or something that vLLM checks for
    connectors of the name NixlConnector alone."""
    parallel = vllm_config.parallel_config.decode_context_parallel_size
    if parallel > 1:
        raise ValueError(
            f"LinkspanConnector with decode_context_parallel_size={parallel}: vLLM checks that for"
            ' "kv_connector": "NixlConnector" alone; give that and'
            f' "kv_connector_extra_config": {{"backends": ["{_BACKEND}"]}}'
        )
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    backends = extra.setdefault("backends", [_BACKEND])
    if list(backends) != [_BACKEND]:
        raise ValueError(
            f"LinkspanConnector with backends={backends!r} in kv_connector_extra_config: leave it"
            " out, or choose NixlConnector"
        )


def _check_plugin() -> None:
    """RuntimeError: NIXL is missing, or does not find the plugin."""
    from vllm.distributed.nixl_utils import NixlWrapper, nixl_agent_config

    if NixlWrapper is None or nixl_agent_config is None:
        raise RuntimeError("LinkspanConnector needs NIXL 1.5: pip install nixl")
    plugins = NixlWrapper("linkspan probe", nixl_agent_config(backends=[])).get_plugin_list()
    if _BACKEND not in plugins:
        folder = os.environ.get("NIXL_PLUGIN_DIR")
        raise RuntimeError(
            f"NIXL has the plugins {', '.join(sorted(plugins)) or 'none'} and not {_BACKEND}, with"
            f" NIXL_PLUGIN_DIR={folder!r}: set it to the folder of libplugin_{_BACKEND}.so"
        )
