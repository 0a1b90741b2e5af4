"""Files of this machine for requests and answers that are elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from foreword.errors import ForewordError
from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.storage import RemoteFolder, StorageError, is_url


@contextmanager
def local_copies(
    requests: str, answers: str
) -> Iterator[tuple[Path, Path, StoredAnswers | None]]:
    """Yield the files to read and to append to, and where answers are stored.

    The copies of URLs are deleted unless they have answers that cannot be stored, which
    is a ForewordError. Errors name the URLs.
    """
    paths, stored = [Path(requests), Path(answers)], None
    if not is_url(requests) and not is_url(answers):
        yield paths[0], paths[1], stored
        return
    folder = Path(mkdtemp(prefix="foreword-batch-"))
    is_lost = False
    try:
        if is_url(requests):
            paths[0] = folder / "requests.jsonl"
            source, name = _parted(requests)
            source.get(name, paths[0])
        if is_url(answers):
            paths[1] = folder / "answers.jsonl"
            stored = StoredAnswers(*_parted(answers), paths[1])
            stored.fetch()
        yield paths[0], paths[1], stored
        if stored is not None:
            stored.finish()
    except StorageError as error:
        is_lost = is_url(answers) and paths[1].exists() and paths[1].stat().st_size > 0
        if is_lost:
            raise ForewordError(f"{error}. All answers are in {paths[1]}") from error
        raise
    except ForewordError as error:
        message = str(error)
        for path, url in zip(paths, (requests, answers), strict=True):
            message = message.replace(str(path), url)
        error.args = (message,)
        raise
    finally:
        if not is_lost:
            rmtree(folder)


def _parted(url: str) -> tuple[RemoteFolder, str]:
    """Return the folder of a file, and its name."""
    name = url.rpartition("/")[2]
    return RemoteFolder(url.removesuffix(name)), name
