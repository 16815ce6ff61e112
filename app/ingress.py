"""Ingress: receives HTTP, answers it from the graph. Holds no request state of its own."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.transport import fast_handle

from .config import ApiConfig
from .graph import RayGraph
from .server import create_app


@serve.ingress()
class Ingress:
    def __init__(self, api: ApiConfig, tokenizer: DeploymentHandle, model_replica: DeploymentHandle) -> None:
        self._api = api
        self._graph = RayGraph(fast_handle(tokenizer), fast_handle(model_replica), api.health_timeout_s)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._graph, self._api)
