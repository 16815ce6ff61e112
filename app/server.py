"""The FastAPI application: routes, and one place where every error becomes a response."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .config import ApiConfig
from .dialects import Dialect
from .errors import ApiError, ServerError, error_body, validation_body
from .generation import Generator
from .graph import Graph
from .routes.chat import chat_router
from .routes.completions import completions_router
from .routes.models import models_router
from .strict_json import JsonResponse

logger = logging.getLogger("ray.serve")


def create_app(graph: Graph, api: ApiConfig) -> FastAPI:
    """The API over any graph: Ray's deployments in production, a scripted one in tests."""
    generator = Generator(graph, api)
    app = FastAPI(title="servegraph", redirect_slashes=False)
    for router in (models_router, completions_router, chat_router):
        app.include_router(router(generator))
    _handle_errors(app, generator.dialect)
    return app


def _handle_errors(app: FastAPI, dialect: Dialect) -> None:
    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> JsonResponse:
        return JsonResponse(error_body(error, dialect), status_code=error.status, headers=dict(error.headers))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JsonResponse:
        status, body = validation_body(error.errors(), dialect)
        return JsonResponse(body, status_code=status)

    @app.exception_handler(HTTPException)
    async def rejected(_: Request, error: HTTPException) -> JsonResponse:
        body: dict[str, Any] = {"detail": error.detail}
        if dialect.openai_errors:
            body = {
                "error": {
                    "message": error.detail,
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
            }
        return JsonResponse(body, status_code=error.status_code, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JsonResponse:
        return JsonResponse(error_body(ServerError(), dialect), status_code=500)
