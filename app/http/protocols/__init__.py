"""Adapters of the tasks to the protocols of other clients: modules with `routes` and `TAG`, listed here."""

from app.http.protocols import hugging_face, open_inference, text_embeddings

ADAPTERS = (hugging_face, open_inference, text_embeddings)
