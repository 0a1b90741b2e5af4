"""What a server's process and its middleware know of whatever takes requests."""

import asyncio
import logging
from dataclasses import dataclass, field

from foreword.errors import ForewordError
from foreword_server.errors import ApiError, PrivatePaths, as_api_error
from foreword_server.limits import Limits
from foreword_server.log import NAME, Log
from foreword_server.settings import Settings


@dataclass(slots=True, eq=False)
class Front:
    """A service, or a router of them."""

    settings: Settings
    log: Log
    limits: Limits
    """Counts of its running answers."""
    paths: PrivatePaths
    leaving: bool = field(default=False, init=False)
    """Whether `/ready` sends clients to other servers, as this one stops."""
    draining: bool = field(default=False, init=False)
    """Whether new requests are refused, as the server stops."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the time for draining is over: what still runs ends with an error."""

    @property
    def failure(self) -> ForewordError | None:
        """Why no request can be answered any more; None while some can."""
        return None

    def drain(self) -> None:
        """Refuse new requests: the server stops."""
        self.draining = True

    def reported(self, error: Exception, request_id: str) -> ApiError:
        """Return an exception as an error of the API, without folders; one that is a
        fault of ours is logged with its traceback.
        """
        failure = as_api_error(error, self.paths.hidden)
        if failure.status >= 500 and not isinstance(error, ForewordError):
            message = "request %s failed"
            logging.getLogger(NAME).error(message, request_id, exc_info=error)
        return failure
