"""The HTTP API: the way of a request, other protocols, problem documents, the OpenAPI document, pages."""
