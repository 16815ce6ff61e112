"""How the deployments call each other: gRPC handles on single event loops, the cheapest pair measured.

gRPC handles lose cancellations when user code or the router has a loop of its own, so they are used
only where this process runs both on one loop; otherwise calls go by Ray's actor transport.
"""

from __future__ import annotations

import logging
from typing import Any

from ray.serve._private.constants import (
    RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP,
    RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD,
)
from ray.serve.handle import DeploymentHandle

logger = logging.getLogger("ray.serve")

SINGLE_LOOP_ENV = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}


def actor_options(**resources: Any) -> dict[str, Any]:
    """`ray_actor_options` of a deployment: its resources and the single-loop settings."""
    return {**resources, "runtime_env": {"env_vars": SINGLE_LOOP_ENV}}


def fast_handle(handle: DeploymentHandle) -> DeploymentHandle:
    """The handle over the fastest transport that is safe in this process."""
    if RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD or RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP:
        logger.warning(
            "Calls go by the slower actor transport: an override of ray_actor_options left out "
            "the runtime_env.env_vars %s",
            SINGLE_LOOP_ENV,
        )
        return handle
    return handle.options(
        _by_reference=False, request_serialization="pickle", response_serialization="pickle"
    )
