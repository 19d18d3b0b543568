"""What operators see: metrics, logs, traces, request ids."""
