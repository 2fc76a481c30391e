"""An ASGI application under uvicorn on wakeloop.

    python examples/web_app.py                then:  curl http://127.0.0.1:8000/

From the command line the same is
    uvicorn --loop wakeloop:new_event_loop examples.web_app:app
"""

import json
from typing import Any

import uvicorn

import wakeloop


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = json.dumps({"path": scope["path"], "method": scope["method"]}).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=8000))
    try:
        wakeloop.run(server.serve())
    except KeyboardInterrupt:
        pass
