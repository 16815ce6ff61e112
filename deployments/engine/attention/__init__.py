"""Paged attention behind transformers' AttentionInterface; one module for each backend."""

from .backend import AttentionBackend, AttentionContext, PlannedContext, create_backend
from .interface import IMPLEMENTATION_NAME, register

__all__ = [
    "IMPLEMENTATION_NAME",
    "AttentionBackend",
    "AttentionContext",
    "PlannedContext",
    "create_backend",
    "register",
]
