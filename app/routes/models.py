"""GET /health, /v1/models and /v1/models/{id}; load balancers may ask with HEAD."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from deployments.wire import ServedModel

from ..errors import ModelNotFound
from ..generation import Generator
from ..strict_json import JsonResponse


def models_router(generator: Generator) -> APIRouter:
    router = APIRouter()
    owned_by = generator.api.owned_by

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Whether a replica can serve")
    async def health() -> Response:
        if await generator.graph.is_ready():
            return JsonResponse({"status": "ok"})
        return JsonResponse({"status": "not_ready"}, status_code=503)

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", summary="List the served models")
    async def models() -> Response:
        model = await generator.graph.served_model()
        return JsonResponse({"object": "list", "data": [_card(model, owned_by)]})

    @router.head("/v1/models/{model_id:path}", include_in_schema=False)
    @router.get("/v1/models/{model_id:path}", summary="Describe a served model")
    async def model(model_id: str) -> Response:
        served = await generator.graph.served_model()
        if model_id != served.info.served_name:
            raise ModelNotFound(model_id)
        return JsonResponse(_card(served, owned_by))

    return router


def _card(model: ServedModel, owned_by: str) -> dict[str, Any]:
    return {
        "id": model.info.served_name,
        "object": "model",
        "created": model.info.created,
        "owned_by": owned_by,
        "max_model_len": model.max_model_len,
    }
