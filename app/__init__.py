"""The service: HTTP in front, dynamic batches behind, `model` at the end."""
