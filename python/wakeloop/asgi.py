"""A middleware for ASGI applications: it labels requests with their routes, for `/labels` of the window.

    app.add_middleware(wakeloop.asgi.LabelMiddleware)      # Starlette and FastAPI
    app = wakeloop.asgi.LabelMiddleware(app)               # any ASGI application
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Self, final

from ._observe.labels import label, relabel
from ._observe.labels import current as _current

__all__ = ("LabelMiddleware",)

_Message = MutableMapping[str, Any]
#: The methods of requests that a label has, where a route does not say which it takes. A peer may send any word.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_App = Callable[[Any, Any, Any], Awaitable[None]]


@final
class LabelMiddleware:
    """Labels each request with its method and its route: ``GET /users/{id}``.

    The label is set (:class:`wakeloop.label`) when the router of Starlette or FastAPI has found the route, so there are
    as many labels as routes. What runs before that, and requests without a route, have the label that was set outside,
    or none. A WebSocket has ``WEBSOCKET`` in place of the method, and a method that the route does not take has
    ``OTHER``. An endpoint that is no coroutine runs in another
    thread, whose time is not split by label.
    """

    def __init__(self, app: _App) -> None:
        self.app = app

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Run the application for one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        # What the router sets in a context that it shares with this coroutine ends with the request.
        with label(_current()):
            await self.app(_RoutedScope(scope), receive, send)


class _RoutedScope(dict[str, Any]):
    """A copy of a scope that notices when a router writes what it has found into it.

    Whatever is written here is written to the scope outside first: other middlewares read there which route was found.
    """

    #: The path of the mounts so far, and the last of them.
    _prefix = ""
    _mount: Any = None

    def __init__(self, outside: MutableMapping[str, Any]) -> None:
        super().__init__(outside)
        self._outside = outside

    def __setitem__(self, key: str, value: Any) -> None:
        self._outside[key] = value
        super().__setitem__(key, value)
        if key == "route":
            self._name(value)

    def update(self, *others: Any, **items: Any) -> None:
        found = dict(*others, **items)
        self._outside.update(found)
        super().update(found)
        if "route" in found:
            self._name(found["route"])
        elif "endpoint" in found:
            # Starlette before 1.0 leaves no route.
            route = self.get("route")
            if route is None or route is self._mount:
                routes = getattr(self._mount or self.get("router"), "routes", None) or ()
                self._name(_route_of(routes, found["endpoint"]))

    def __ior__(self, other: Any) -> Self:  # type: ignore[override, misc]
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._outside.pop(key, None)

    def pop(self, key: str, *default: Any) -> Any:
        self._outside.pop(key, None)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        key, value = super().popitem()
        self._outside.pop(key, None)
        return key, value

    def clear(self) -> None:
        super().clear()
        self._outside.clear()

    def __copy__(self) -> dict[str, Any]:
        # A copy is the application's own.
        return dict(self)

    def _name(self, route: Any) -> None:
        path = getattr(route, "path", None)
        if not isinstance(path, str):
            return
        if hasattr(route, "routes") and not hasattr(route, "endpoint"):
            # A mount. The path inside of it comes next, if a router is there.
            if route is self._mount:
                return
            self._prefix, self._mount = self._prefix + path, route
            path = ""
        else:
            # FastAPI has the whole path of an included route apart from the route.
            included = self.get("fastapi")
            context = included.get("effective_route_context") if isinstance(included, dict) else None
            whole = getattr(context, "path_format", None)
            path = whole if isinstance(whole, str) else path
        if self["type"] == "websocket":
            method = "WEBSOCKET"
        else:
            method = self["method"] if self["method"] in (getattr(route, "methods", None) or _METHODS) else "OTHER"
        relabel(f"{method} {self._prefix}{path}")


def _route_of(routes: Iterable[Any], endpoint: Any) -> Any:
    for route in routes:
        if getattr(route, "endpoint", None) is endpoint or getattr(route, "app", None) is endpoint:
            return route
    return None
