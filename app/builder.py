"""The whole graph: Ingress asks Tokenizer for ids and ModelReplica for text.

This module must not postpone the evaluation of annotations: Serve reads the builder's to validate `args`.
"""

from ray.serve import Application

from app.config import AppArgs
from app.ingress import Ingress
from deployments.model_replica import ModelReplica
from deployments.tokenizer import Tokenizer
from deployments.transport import actor_options


def build(args: AppArgs) -> Application:
    """Bind the graph that a serve config's `args` describe."""
    tokenizer = Tokenizer.options(ray_actor_options=actor_options(num_cpus=0.25)).bind(
        args.model, args.engine, args.tokenizer
    )
    model_replica = ModelReplica.options(
        ray_actor_options=actor_options(**args.replica.model_dump(exclude_none=True))
    ).bind(args.model, args.engine, args.admission)
    return Ingress.options(ray_actor_options=actor_options(num_cpus=0.25)).bind(
        args.api, tokenizer, model_replica
    )
