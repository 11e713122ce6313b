"""A sample: text in pieces, each with what the loss makes of it, and its tokens.

A text is tokenised as a whole, as a server does it.  Pieces that were tokenised apart and joined
would give sequences that no server produces: `"` and `,` apart are two tokens, together one.
"""
import enum

import numpy as np

BOS, EOT = "<|begin_of_text|>", "<|end_of_text|>"
TURN, TURN_END = "<|im_start|>", "<|im_end|>"
PAD = "<|pad|>"
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPECIAL = (BOS, EOT, TURN, TURN_END, PAD, *TOOL_MARKS)


class Loss(enum.IntEnum):
    """What is learned from a piece.  The settings say what each kind weighs."""
    NONE = 0  # random values: nobody can predict them
    TEXT = 1  # language modelling
    ANSWER = 2
    PROMPT = 3  # the wording around the evidence


class Sample:
    def __init__(self):
        self.pieces = []

    def add(self, text, loss):
        if text:
            self.pieces.append((text, loss))
        return self

    def extend(self, pieces):
        self.pieces += pieces
        return self

    @property
    def text(self):
        return "".join(text for text, _ in self.pieces)

    def encode(self, tokenizer):
        """(ids u16 [n], losses u8 [n]).  A token belongs to the piece in which it ends."""
        encoding = tokenizer.encode(self.text, add_special_tokens=False)
        token_ends = np.array(encoding.offsets, dtype=np.int64)[:, 1]
        piece_ends = np.cumsum([len(text) for text, _ in self.pieces])
        losses = np.array([loss for _, loss in self.pieces], dtype=np.uint8)
        owners = np.searchsorted(piece_ends, token_ends - 1, side="right")
        return np.array(encoding.ids, dtype=np.uint16), losses[np.minimum(owners, len(losses) - 1)]
