"""What callers of the service need; it imports nothing of the service. `tables` is the reader of tables."""
