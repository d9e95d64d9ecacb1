"""Limit how many connections the explorer's server holds, and how long a request may take.

Otherwise a few hundred connections that send nothing would use up the files that a process may
open.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_CONNECTIONS = 500
"""A user's page holds up to two for as long as it is open, and a few more while it loads."""
HEADER_SECONDS = 10.0
"""Time in which the first request of a connection must arrive."""


def limit_connections(config: Any) -> None:
    """Apply the limits to connections that a server of uvicorn accepts from now on.

    Args:
        config: The configuration of the running server.
    """
    protocol: Any = config.http_protocol_class

    class ImpatientProtocol(protocol):  # type: ignore[misc]
        """Closes a connection whose first request does not arrive in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(HEADER_SECONDS, self.close_if_idle, transport)

        def close_if_idle(self, transport: asyncio.Transport) -> None:
            if self.scope is None:
                transport.close()

    config.http_protocol_class = ImpatientProtocol
    config.loaded_app = config.app  # without the layer that believes what local clients forward
    config.limit_concurrency = MAX_CONNECTIONS
