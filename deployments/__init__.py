"""What Ray places on machines: the deployments of the graph and, below them, the engine."""
