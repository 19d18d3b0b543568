"""The HTTP API: request handling, other protocols, problem documents, the OpenAPI document, pages."""
