"""Routes of the engine's API: what answers at a path, on Starlette.

    routes = EngineRoutes()

    @routes.post("/tokenize")
    async def tokenize(http: Request) -> Response: ...

Not on FastAPI, which the engine has no other use for: to import that takes 0.67 s of CPU time on two slow cores and
Starlette 0.16, at the start of every engine.
"""

from collections.abc import Awaitable, Callable, Sequence
from inspect import signature
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

Answering = Callable[..., Awaitable[Response]]
"""Takes the request, or nothing."""
GET_AND_POST: Final = ("GET", "POST")


class EngineRoutes:
    """
    Attributes:
        routes: In the order in which they are tried.
    """

    def __init__(self) -> None:
        self.routes: list[BaseRoute] = []

    def get(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, ("GET",))

    def post(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, ("POST",))

    def get_and_post(self, path: str) -> Callable[[Answering], Answering]:
        return self._adding(path, GET_AND_POST)

    def add(self, path: str, answers: Answering, methods: Sequence[str] = ("POST",)) -> None:
        self.routes.append(Route(path, _asked(answers), methods=methods))

    def _adding(self, path: str, methods: Sequence[str]) -> Callable[[Answering], Answering]:
        def add(answers: Answering) -> Answering:
            self.add(path, answers, methods)
            return answers

        return add


def _asked(answers: Answering) -> Callable[[Request], Awaitable[Any]]:
    if signature(answers).parameters:
        return answers

    async def asked(_: Request) -> Response:
        return await answers()

    return asked
