"""Metrics, logs, traces and request ids."""
