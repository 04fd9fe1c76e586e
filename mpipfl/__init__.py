"""Personalized federated learning, trained in parallel over MPI."""

__version__ = "0.1.0"
