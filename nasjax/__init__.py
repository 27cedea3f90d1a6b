"""Training-free and hybrid neural architecture search with neural tangent kernels."""

__version__ = "0.1.0"
