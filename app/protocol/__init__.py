"""The bodies of requests and responses, as the API documents describe them."""
