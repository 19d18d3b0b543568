"""What is computed: BERT, its tokenizer and its checkpoints. Knows nothing of HTTP or of training."""

from model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from model.config import BertConfig
from model.heads import BertForPreTraining, BertForSequenceClassification
from model.packing import PackedBatch
from model.tokenizer import Encoding, Tokenizer

__all__ = [
    "BertConfig",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "Checkpoint",
    "Encoding",
    "PackedBatch",
    "Tokenizer",
    "load_checkpoint",
    "save_checkpoint",
]
