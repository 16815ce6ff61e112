"""The whole graph: Ingress asks Tokenizer for ids and ModelReplica for text.

This module must not postpone the evaluation of annotations: Serve reads the builder's to validate `args`.
"""

from ray import serve
from ray.serve import Application

from app.config import AppArgs
from app.ingress import Ingress
from deployments.model_replica import ModelReplica
from deployments.tokenizer import Tokenizer
from deployments.transport import actor_options

# Longer than most answers take, so that a replica that is stopped finishes what it has begun.
_DRAIN_S = 120


def build(args: AppArgs) -> Application:
    """Bind the graph that a serve config's `args` describe; its `deployments` may override these options."""
    tokenizer = serve.deployment(
        Tokenizer, max_ongoing_requests=1000, ray_actor_options=actor_options(num_cpus=0.25)
    ).bind(args.model, args.engine, args.tokenizer)
    model_replica = serve.deployment(
        ModelReplica,
        max_ongoing_requests=512,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=_DRAIN_S,
        ray_actor_options=actor_options(**args.replica.model_dump(exclude_none=True)),
    ).bind(args.model, args.engine, args.admission)
    return serve.deployment(
        Ingress,
        max_ongoing_requests=2000,
        graceful_shutdown_timeout_s=_DRAIN_S,
        ray_actor_options=actor_options(num_cpus=0.25),
    ).bind(args.api, tokenizer, model_replica)
