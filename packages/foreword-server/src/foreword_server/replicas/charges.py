"""Finds the request that ends the processes which run it."""

from collections.abc import Collection
from dataclasses import dataclass

from foreword_server.errors import ENDS_PROCESS, ApiError

MOST_DEATHS = 2
"""Processes that a request ends before it is refused."""


@dataclass(slots=True, eq=False)
class Charge:
    """What a request is charged with: processes that ended while they ran it.

    A process that ends does not say which of its requests was the reason. So each of
    them is a suspect, and is tried again in quarantine, where no other suspect runs. If
    that process ends too, the reason is known after two, and the other requests there
    are charged with nothing. A suspect that gets past the point where it stood leaves
    quarantine, so that the next one can enter; after a second death it stays.
    """

    deaths: int = 0
    quarantined: bool = False
    guilty: bool = False

    def clear(self) -> None:
        """End the quarantine of a request that got past the point where it stood."""
        self.quarantined = self.deaths >= MOST_DEATHS


def charge(requests: Collection[Charge]) -> None:
    """Charge the end of a process to the suspect in it, or else to all its requests."""
    suspects = [one for one in requests if one.quarantined] or requests
    for suspect in suspects:
        suspect.deaths += 1
        suspect.quarantined = True
        suspect.guilty = len(suspects) == 1 and suspect.deaths >= MOST_DEATHS


def ends_process() -> ApiError:
    """Return the error of a request that ends processes: no other replica gets it."""
    return ApiError(
        500,
        f"cannot answer this request: it ended {MOST_DEATHS} replicas, one after the "
        "other. Change it; sent again, it would end more",
        code=ENDS_PROCESS,
    )
