"""What a console shows of a table, and lines about the progress of a run."""

from collections.abc import Callable

import pytest
from rich.console import Console


@pytest.fixture(scope="module")
def progress() -> list[str]:
    return []


@pytest.fixture(scope="session")
def printed() -> Callable[..., str]:
    def show(table: object, width: int = 200, **terminal: object) -> str:
        console = Console(width=width, **terminal)
        with console.capture() as shown:
            console.print(table)
        return shown.get()

    return show
