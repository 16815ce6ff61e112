"""Continuous batching on one device: plain torch and transformers, neither Ray nor FastAPI."""
