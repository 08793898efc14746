"""HTTP application of the page: static files, and each view as JSON, once or as a stream of changes.

It answers GET only. Requests with an unknown Host header are refused, because another site whose name resolves to
127.0.0.1 could otherwise read everything through the viewer's browser (DNS rebinding).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType, ref

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from dashboard.serve.stream import Viewing, encode, stream
from dashboard.serve.watching import NOT_LISTED
from dashboard.view.filters import Filter
from dashboard.view.node import node_page
from dashboard.view.nodes import overview
from dashboard.view.pods import pod_page, pods
from dashboard.view.recent_events import history

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    import msgspec
    from fastapi.telemetry import TelemetryConfig
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from dashboard.model.cluster import Cluster
    from dashboard.serve.watching import Watching

    View = Callable[[Cluster], msgspec.Struct | None]

PAGE: Final = Path(__file__).parent.parent / "page"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
# accepted values of Sec-Fetch-Site; not `same-site`, which includes any port of localhost
OWN_SITES: Final = frozenset({"same-origin", "none"})
MOST_VIEWERS: Final = 100
MOST_SHARED: Final = 8  # cached views of one state; the view of 1,000 nodes has about a megabyte
MOST_TEXT: Final = 253  # characters of a filter: the longest valid name
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guarded:
    """Middleware that accepts only GET and HEAD for known hosts, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts) | LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a browser."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]  # type: ignore[misc]
            await send(message)

        await self._refusal_or(scope)(scope, receive, send_guarded)  # type: ignore[arg-type]

    def _refusal_or(self, scope: Scope) -> ASGIApp:
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("this page is read-only\n", 405, {"allow": "GET, HEAD"})
        named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or host_of(named[0]) not in self._hosts:
            return PlainTextResponse("unknown host: name it with --allow-host\n", 421)
        return self._app


def host_of(header: str) -> str:
    """Return the host of a Host header, without the port."""
    host, colon, port = header.lower().rpartition(":")
    return host if colon and port.isdecimal() else header.lower()


def create_app(watching: Watching, hosts: Collection[str] = ()) -> ASGIApp:
    """Return the application; `hosts` are accepted Host names besides localhost and its addresses."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY)
    viewers: set[object] = set()
    shown = ShownViews()

    def answer(request: Request, key: Hashable, view: View) -> Response:
        def once(cluster: Cluster) -> msgspec.Struct | None:
            return shown.of(cluster, key, view)

        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            if request.headers.get("sec-fetch-site", "none") not in OWN_SITES:
                return PlainTextResponse("other sites may not open event streams of this page\n", 403)
            if len(viewers) >= MOST_VIEWERS:
                return PlainTextResponse("too many open pages: close one\n", 503, {"retry-after": "5"})
            return Viewing(stream(watching, once), viewers)
        content = once(watching.cluster)
        return Response(encode(content), 404 if content is None else 200, media_type="application/json")

    _add_views(app, answer)
    _add_files(app)

    @app.get("/healthz")
    async def health() -> Response:
        if watching.is_complete:
            return PlainTextResponse("ok\n")
        trouble = next(iter(watching.cluster.troubles), NOT_LISTED)
        return PlainTextResponse(f"{trouble}\n", 503)

    return Guarded(app, hosts)


class ShownViews:
    """Cache of the newest state's views: viewers with the same filter share one; a large one takes 30 ms to compute."""

    def __init__(self) -> None:
        # A weak reference, so that an older state is freed.
        self._cluster: ReferenceType[Cluster] | None = None
        self._views: dict[Hashable, msgspec.Struct | None] = {}

    def of(self, cluster: Cluster, key: Hashable, view: View) -> msgspec.Struct | None:
        """Return the cached view of a state for a key, or compute it by `view`."""
        if self._cluster is None or self._cluster() is not cluster:
            self._cluster, self._views = ref(cluster), {}
        if key not in self._views:
            self._views[key] = view(cluster)
        content = self._views[key]
        if len(self._views) > MOST_SHARED:
            del self._views[next(iter(self._views))]
        return content


def _add_views(app: FastAPI, answer: Callable[[Request, Hashable, View], Response]) -> None:
    def wanted(request: Request) -> Filter:
        asked = request.query_params
        return Filter(*(asked.get(name, "")[:MOST_TEXT] for name in ("namespace", "pod", "policy", "node")))

    async def nodes(request: Request) -> Response:
        chosen = wanted(request)
        return answer(request, ("nodes", chosen), lambda cluster: overview(cluster, chosen))

    async def node(request: Request) -> Response:
        name, chosen = request.path_params["name"], wanted(request)
        return answer(request, ("node", name, chosen), lambda cluster: node_page(cluster, name, chosen))

    async def all_pods(request: Request) -> Response:
        chosen = wanted(request)
        return answer(request, ("pods", chosen), lambda cluster: pods(cluster, chosen))

    async def pod(request: Request) -> Response:
        names = request.path_params["namespace"], request.path_params["name"]
        return answer(request, ("pod", *names), lambda cluster: pod_page(cluster, *names))

    async def changes(request: Request) -> Response:
        chosen = wanted(request)
        return answer(request, ("changes", chosen), lambda cluster: history(cluster, chosen))

    app.add_route("/api/nodes", nodes)
    app.add_route("/api/nodes/{name}", node)
    app.add_route("/api/pods", all_pods)
    app.add_route("/api/pods/{namespace}/{name}", pod)
    app.add_route("/api/changes", changes)


def _add_files(app: FastAPI) -> None:
    """Add the routes of the static files; all pages have the same HTML document."""
    files = {path.name: path.read_bytes() for path in sorted(PAGE.iterdir()) if path.suffix in TYPES}

    async def document(request: Request) -> Response:
        return Response(files["index.html"], media_type=TYPES[".html"])

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(files[name], media_type=TYPES[Path(name).suffix])

    for path in ("/", "/nodes/{name}", "/pods", "/pods/{namespace}/{name}", "/changes"):
        app.add_route(path, document)
    app.add_route("/page/{name}", file)
