"""The same tasks in the protocols of other clients. An adapter is a module with `ROUTES` and `TAG`, listed here."""

from app.api.protocols import hugging_face, open_inference, text_embeddings

ADAPTERS = (hugging_face, open_inference, text_embeddings)
