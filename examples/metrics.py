"""Serves the metrics of wakeloop's event loop to Prometheus, from a plain ASGI application under uvicorn.

    python examples/metrics.py                then:  curl http://127.0.0.1:8000/metrics

`examples/metrics-dashboard.json` is a dashboard for Grafana: import it, and choose the Prometheus data source.
"""

from typing import Any

import wakeloop

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["path"] == "/metrics":
        body, content_type = wakeloop.metrics_text().encode(), CONTENT_TYPE
    else:
        body, content_type = b"hello\n", b"text/plain"
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=8000))
    try:
        wakeloop.run(server.serve())
    except KeyboardInterrupt:
        pass
