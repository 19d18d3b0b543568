"""The same tasks in the protocols of other clients. An adapter is a module with `routes` and `TAG`, listed here."""

from app.http.protocols import hugging_face, open_inference, text_embeddings

ADAPTERS = (hugging_face, open_inference, text_embeddings)
