"""What a client talks to: the HTTP API and the graph that answers it."""
