"""The HTTP clients: `client` and `async_client`. `exchange` decides about requests and their times without a
network."""
