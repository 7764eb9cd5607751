"""As much of Ray 2.60 as linkspan.ray calls, for tests without Ray. contract_test.py holds it
against Ray's own source."""

import os
from typing import Any

from . import util as util


class _Context:
    def get_actor_id(self) -> str | None:
        return os.environ.get("STAND_IN_ACTOR")


def get_runtime_context() -> _Context:
    return _Context()


def get(call: Any, *, timeout: float | None = None) -> Any:
    assert timeout is not None, "an actor that does not answer would be waited for without end"
    return call()
