"""Files of this machine for the requests and answers of `foreword batch`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from foreword.errors import ForewordError
from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.storage import RemoteFolder, StorageError, fetch, is_url


@dataclass(frozen=True, slots=True)
class Copies:
    """The files that a run reads and appends to, copies where their place is a URL."""

    requests: Path
    answers: Path
    stored: StoredAnswers | None

    @contextmanager
    def continued(self) -> Iterator[None]:
        """Copy the answers of earlier runs; store all answers in the end."""
        if self.stored is not None:
            self.stored.fetch()
        yield
        if self.stored is not None:
            self.stored.finish()

    def storing(self, note: Callable[[str], None]) -> AbstractContextManager[None]:
        """Store new answers meanwhile; `note` shows why some cannot be stored yet."""
        if self.stored is None:
            return nullcontext()
        return self.stored.storing(lambda error: note(f"{error}. The run goes on"))


@contextmanager
def local_copies(requests: str, answers: str) -> Iterator[Copies]:
    """Yield files of this machine; copies are deleted unless their answers are lost.

    Raises InvalidRequest or StorageError.
    """
    if not is_url(requests) and not is_url(answers):
        yield Copies(Path(requests), Path(answers), None)
        return
    folder = Path(mkdtemp(prefix="foreword-batch-"))
    request_path, answer_path, stored = Path(requests), Path(answers), None
    try:
        if is_url(requests):
            request_path = folder / "requests.jsonl"
            fetch(requests, request_path)
        if is_url(answers):
            answer_path = folder / "answers.jsonl"
            name = answers.rpartition("/")[2]
            place = RemoteFolder.of(answers.removesuffix(name))
            stored = StoredAnswers(place, name, answer_path)
        yield Copies(request_path, answer_path, stored)
    except StorageError as error:
        if not answer_path.exists() or not answer_path.stat().st_size:
            rmtree(folder)
            raise
        raise ForewordError(f"{error}. All answers are in {answer_path}") from error
    except BaseException:
        rmtree(folder)
        raise
    rmtree(folder)
