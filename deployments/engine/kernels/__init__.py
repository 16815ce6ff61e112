"""CPU kernels of our own: products with packed weights, and paged attention. Built on the machine they run on."""

from .build import KernelsUnavailableError, is_loaded, load_kernels

__all__ = ["KernelsUnavailableError", "is_loaded", "load_kernels"]
