"""Files on the Hugging Face Hub, through `huggingface_hub` and its cache."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ._http import TIMEOUT, SourceError
from .record import Source


class NoFileError(SourceError):
    """The Hub was reached, and the repository has no such file."""


COMMIT = re.compile(r"[0-9a-f]{40}")


def endpoint() -> str | None:
    """The Hub's address if ``HF_ENDPOINT`` names another than the usual one."""
    return os.environ.get("HF_ENDPOINT") or None


def obtain(source: Source, *, local: bool = False, again: bool = False) -> Path:
    """Path of a file of a repository in the Hub's cache, downloaded where it is not there.

    Args:
        source: of the kind ``hf-hub``.
        local: look into the cache only. Without this the cache has the last word where the Hub
            cannot be reached, and the first where the revision is a commit.
        again: download though the cache has it.

    Raises:
        NoFileError: the repository has no such file.
        SourceError: not there or not reachable; the message is the reason alone.
    """
    import huggingface_hub
    from huggingface_hub import errors

    hub: Any = huggingface_hub
    revision = source.revision or None
    file = {"repo_id": source.repository, "filename": source.path, "revision": revision}
    try:
        # Only this is sure to ask no server.
        path = hub.try_to_load_from_cache(**file)
    except ValueError as error:
        raise SourceError(reason(error, source)) from error
    cached = Path(path) if isinstance(path, str) and os.path.isfile(path) else None
    if cached is not None and not again and (local or COMMIT.fullmatch(source.revision)):
        return cached
    if local:
        raise SourceError("not in the cache of the Hub")
    try:
        # One question first: a download repeats its own for up to a minute where nobody answers.
        url = hub.hf_hub_url(**file, endpoint=endpoint())
        hub.get_hf_file_metadata(url, timeout=TIMEOUT, library_name="vizoo")
        asked = {"endpoint": endpoint(), "library_name": "vizoo", "force_download": again}
        path = hub.hf_hub_download(**file, **asked)
    # What a cut connection raises depends on the HTTP library, which has changed before.
    except Exception as error:
        refused = 400 <= status(error) < 500 or isinstance(error, ValueError)
        if cached is not None and not again and not refused:
            return cached
        missing = isinstance(error, errors.EntryNotFoundError)
        missing = missing and not isinstance(error, errors.LocalEntryNotFoundError)
        raise (NoFileError if missing else SourceError)(reason(error, source)) from error
    return Path(path)


def reason(error: Exception, source: Source) -> str:
    """Half a line that says why a call of the Hub failed and what to do."""
    from huggingface_hub import errors

    where = endpoint() or "https://huggingface.co"
    repository = f"{source.repository}@{source.revision or 'main'}"
    kinds: list[tuple[type[BaseException], str]] = [
        (errors.GatedRepoError, "gated: accept its terms on the Hub, then `hf auth login`"),
        (
            errors.RepositoryNotFoundError,
            f"no repository {source.repository} at {where}, or a private one: `hf auth login`",
        ),
        (errors.RevisionNotFoundError, f"no revision {source.revision!r} in {source.repository}"),
        (errors.LocalEntryNotFoundError, _unreachable(error.__cause__, where)),
        (errors.EntryNotFoundError, f"no file {source.path} in {repository}"),
    ]
    for kind, text in kinds:
        if isinstance(error, kind):
            return text
    if not status(error):
        if isinstance(error, OSError) and error.errno is not None:
            return f"{error.filename or 'the cache of the Hub'}: {error.strerror}"
        if isinstance(error, json.JSONDecodeError):
            return f"{where} does not answer as the Hub does"
        if isinstance(error, ValueError):
            return " ".join(str(error).split()) or type(error).__name__
    return _unreachable(error, where)


def _unreachable(error: BaseException | None, where: str) -> str:
    if error is None:
        return "not in the cache of the Hub"
    if code := status(error):
        return f"HTTP {code} from {where}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"cannot reach {where} ({text})"


def status(error: BaseException) -> int:
    """HTTP status that an error is of, or 0."""
    return getattr(getattr(error, "response", None), "status_code", None) or 0
