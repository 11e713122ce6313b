#!/usr/bin/env python3
"""Trains the tokenizer and writes it in the Hugging Face layout.

    python tokenizer.py --corpus DIR --out DIR [--entries 8192]

Byte-level BPE without normaliser.  A text is cut into pieces as Qwen 2 does it, digits one by one:
numbers are then read and copied digit by digit, whatever their length.  The entries are learned
from a slice of every document, so that no book dominates, and from exercises, so that the marks of
JSON and chat get tokens.
"""
import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import chat
from tasks import families
from tasks.job import Job
from tasks.library import Libraries, Library
from tasks.sample import BOS, EOT, PAD, SPECIAL, TOOL_MARKS, TURN, TURN_END

PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LONGEST_ENTRY = 20  # bytes
SLICES = {"books": 90_000, "documents": 2_500}  # bytes of each document
N_EXERCISES, EXERCISE_TOKENS = 1500, 700
CONTEXT = 32768


def slices(corpus, rng):
    for name, n_bytes in SLICES.items():
        library = Library(corpus / f"{name}.txt")
        for start, end in zip(library.starts, library.ends):
            at = rng.randrange(start, max(start + 1, end - n_bytes))
            yield library.read(at, min(end, at + n_bytes)).decode("utf-8", "ignore")


def exercises(corpus, rng):
    """The wording of every family, without its special tokens."""
    libraries = Libraries(corpus, documents_share=0.25)
    for i in range(N_EXERCISES):
        names, weights = families.names_for(EXERCISE_TOKENS, chats=i % 4 == 0)
        name = rng.choices(names, weights)[0]
        text = families.build(name, Job(rng, EXERCISE_TOKENS, libraries)).text
        for mark in SPECIAL:
            text = text.replace(mark, " ")
        yield text


def learn(texts, n_entries):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=n_entries - len(SPECIAL), show_progress=False,
                                  max_token_length=LONGEST_ENTRY,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([mark for mark in SPECIAL if mark not in TOOL_MARKS])
    # Servers take calls from the text of an answer, where special tokens are left out.
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in TOOL_MARKS])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)])
    return tokenizer


def write(tokenizer, out):
    """tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {str(tokenizer.token_to_id(mark)):
             {"content": mark, **flags, "special": mark not in TOOL_MARKS} for mark in SPECIAL}
    config = {"add_bos_token": True, "bos_token": BOS, "eos_token": TURN_END, "pad_token": PAD,
              "unk_token": None, "clean_up_tokenization_spaces": False,
              "model_max_length": CONTEXT, "tokenizer_class": "PreTrainedTokenizerFast",
              "chat_template": chat.TEMPLATE, "added_tokens_decoder": added}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = {"bos_token": BOS, "eos_token": TURN_END, "pad_token": PAD,
             "additional_special_tokens": [EOT, TURN]}
    (out / "special_tokens_map.json").write_text(json.dumps(names, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--entries", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = [*slices(options.corpus, rng), *exercises(options.corpus, rng)]
    tokenizer = learn(texts, options.entries)
    write(tokenizer, options.out)
    n_bytes = sum(len(text.encode()) for text in texts[:2000])
    n_tokens = sum(len(one.ids) for one in tokenizer.encode_batch(texts[:2000],
                                                                  add_special_tokens=False))
    print(f"tokenizer: {tokenizer.get_vocab_size()} entries, "
          f"{n_bytes / n_tokens:.2f} bytes a token")


if __name__ == "__main__":
    main()
