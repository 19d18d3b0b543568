"""The service on other frameworks' clusters."""
