"""The HTTP clients: `client` and `async_client`, over one conversation without a network (`exchange`)."""
