"""Requests into batches: engine, queue, admission, the life of the service. Knows no torch and no HTTP."""
