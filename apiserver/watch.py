"""Watch request for a list: yields events until the server ends it."""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from apiserver.client import JSON
from apiserver.errors import APIError, Busy, Expired
from apiserver.pages import decode, decode_any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from apiserver.client import Api

GONE: Final = 410  # HTTP status: the requested history is no longer available
SILENCE_SECONDS: Final = 150.0  # longest silence of a live connection; bookmarks arrive each minute


class WatchEvent(msgspec.Struct):
    """A change of an object: ADDED, MODIFIED, DELETED, or BOOKMARK for a new resource version only."""

    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


_event = msgspec.json.Decoder(WatchEvent)
_failure = msgspec.json.Decoder(_Failure)


async def events(
    api: Api,
    path: str,
    params: Mapping[str, str],
    seconds: tuple[int, int],
    accept: str = JSON,
    longest: int | None = None,
) -> AsyncGenerator[WatchEvent]:
    """Yield changes from `params["resourceVersion"]` on; raise Expired if the server has dropped that history.

    The server ends the watch after a random time within `seconds`, so that clients do not reconnect at once.
    """
    asked = {
        **params,
        "watch": "1",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(random.randint(*seconds)),  # noqa: S311 jitter is no secret
    }
    async with aclosing(api.lines(path, asked, SILENCE_SECONDS, accept, longest)) as lines:
        async for line in lines:
            event = await decode_any(_event, line)
            # Frees its memory: an object has megabytes, and the next event may take long.
            del line
            if event.type == "ERROR":
                raise _error(event.object)
            yield event
            del event


def _error(document: msgspec.Raw) -> APIError:
    failure = decode(_failure, document)
    text = f"{failure.code}: {failure.message}"
    return Expired(text) if failure.code == GONE else Busy(text)
