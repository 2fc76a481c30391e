"""An ASGI application, as it is, on all loops of a group: uvicorn's server on each, behind one listener.

    python examples/asgi_group.py             then:  curl http://127.0.0.1:8000/

The first loop accepts, and hands each connection to the loop with the fewest. The application's lifespan runs once, on
the first loop. Ctrl-C and SIGTERM end it as they end uvicorn: requests are finished first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.lifespan.off import LifespanOff

import wakeloop


class LoopServer(uvicorn.Server):
    """uvicorn's server on one loop, without listening sockets and without a lifespan of its own."""

    def __init__(self, config: uvicorn.Config, state: dict[str, Any], all_loops: list["LoopServer"]) -> None:
        super().__init__(config)
        self.servers = []
        self.lifespan = LifespanOff(config)
        self.lifespan.state = state
        self.all_loops = all_loops
        all_loops.append(self)

    def make_protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def main_loop(self) -> None:
        await super().main_loop()
        for server in self.all_loops:
            server.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for server in self.all_loops:
            super(LoopServer, server).handle_exit(sig, frame)


async def serve(group: wakeloop.EventLoopGroup, config: uvicorn.Config) -> None:
    config.load()
    lifespan = config.lifespan_class(config)
    await lifespan.startup()
    if lifespan.should_exit:
        raise SystemExit("the application's start-up has failed")
    all_loops: list[LoopServer] = []
    servers = {loop: LoopServer(config, lifespan.state, all_loops) for loop in group.loops}

    async def on_each_loop(step: Callable[[LoopServer], Awaitable[None]]) -> None:
        await step(servers[asyncio.get_running_loop()])

    listener = await group.create_server(
        lambda: servers[asyncio.get_running_loop()].make_protocol(),
        config.host,
        config.port,
        reuse_port=False,
        ssl=config.ssl,
        backlog=config.backlog,
    )
    with all_loops[0].capture_signals():
        await group.run_on_each(on_each_loop, LoopServer.main_loop)
        listener.close()
        await group.run_on_each(on_each_loop, LoopServer.shutdown)
        await lifespan.shutdown()


if __name__ == "__main__":
    with wakeloop.EventLoopGroup() as loops:
        loops.run(serve(loops, uvicorn.Config("web_app:app", host="127.0.0.1", port=8000)))
