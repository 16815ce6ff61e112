"""CPU kernels of our own, built where they run: products with packed weights, and paged attention."""

from .build import KernelsUnavailableError, is_loaded, load_kernels

__all__ = ["KernelsUnavailableError", "is_loaded", "load_kernels"]
