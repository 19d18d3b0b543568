"""The HTTP clients: `client` and `async_client`. What they send and when is in `exchange`, without a network."""
