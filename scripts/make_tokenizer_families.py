#!/usr/bin/env python3
"""Makes tests/tokenizer/data/families: small tokenizers in the configurations of model families.

The vocabularies that families publish are theirs; these are trained on the held-out text, with the
same normalizer, pre-tokenizer, model options, decoder, post-processor and kinds of added tokens.
Every tokenizer meets the same strings (texts.json) and its own random ids; what the `tokenizers`
library makes of them is kept as 24 bits of hash each, in hexadecimal.  Everything is seeded.

    python3 scripts/make_tokenizer_families.py
"""

import json
import pathlib
import random

from make_tokenizer_goldens import ADDED, DATA, LLAMA3, begin_template, corpus, plain_bytes, split
from make_tokenizer_goldens import strings, trained, write
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

N_TEXTS = 5200
N_RANDOM = 1500
SPACE = "▁"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Names of added tokens, so that the shared strings contain them.
NAMES = ["<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "[INST]", "[/INST]", "<|user|>",
         "<|assistant|>", "<|end|>", "<|system|>", "[gMASK]", "<sop>", "<think>", "</think>",
         "<tool_call>", "<start_of_turn>", "<unused1>", "<0x0A>", "<0xE2>", "▁", "▁▁", "▁the",
         "\n\n\n"]


def texts(rng):
    """The shared strings: those of the other goldens, and mixtures with names of added tokens."""
    out = strings(rng, N_TEXTS - 1200)
    plain = [s for s in out if s]
    while len(out) < N_TEXTS:
        parts = [rng.choice(NAMES if rng.random() < 0.5 else plain)[:40]
                 for _ in range(rng.randint(1, 6))]
        out.append(rng.choice(["", " ", "  ", "\n"]).join(parts))
    return out


def characters(n_vocab, phrases=False):
    """A vocabulary of characters and its merges; phrases: merges that cross spaces, too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    # Words with their space, and runs of other spaces, as SentencePiece has them.
    tokenizer.pre_tokenizer = split(Regex("\n" if phrases else "▁+(?=▁)|▁?[^▁]+|▁"))
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, limit_alphabet=120, show_progress=False,
                                  max_token_length=16)
    lines = corpus()[:600000].splitlines(keepends=True)
    # Runs of space, as code has them.
    lines += [" " * k + "x = y\n" for k in (2, 4, 8, 16)] * 200
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1])], model["merges"]


def sentencepiece(n_vocab=1500, special=("<unk>", "<s>", "</s>"), fallback=range(256),
                  phrases=False, **options):
    """A BPE model as the conversion from SentencePiece makes it: special tokens, bytes, pieces."""
    pieces, merges = characters(n_vocab, phrases)
    tokens = [*special, *(f"<0x{b:02X}>" for b in fallback), *pieces]
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": bool(fallback), **options}
    return Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                merges=[tuple(m) for m in merges], **options))


def add(tokenizer, names, **flags):
    special = flags.pop("special", True)
    tokenizer.add_tokens([AddedToken(name, special=special, **flags) for name in names])


def begin(tokenizer, *names):
    special = [(name, tokenizer.token_to_id(name)) for name in names]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*names, "$A"]), pair=None, special_tokens=special)


def spaces_back(*more):
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(),
                              decoders.Fuse(), *more])


def prepend_and_replace():
    return normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])


def llama_2(normalized=False):
    tokenizer = sentencepiece()
    tokenizer.normalizer = prepend_and_replace()
    tokenizer.decoder = spaces_back(decoders.Strip(" ", 1, 0))
    add(tokenizer, ["<unk>", "<s>", "</s>"], normalized=normalized)
    begin(tokenizer, "<s>")
    return tokenizer


def phi_3():
    tokenizer = llama_2()
    add(tokenizer, ["<|assistant|>", "<|end|>", "<|user|>", "<|system|>"], normalized=False,
        rstrip=True)
    add(tokenizer, ["<|endoftext|>"], normalized=False)
    return tokenizer


def yi():
    tokenizer = sentencepiece(special=("<unk>", "<|startoftext|>", "<|endoftext|>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = spaces_back()
    add(tokenizer, ["<unk>", "<|startoftext|>", "<|endoftext|>"], normalized=False)
    add(tokenizer, ["<|im_start|>", "<|im_end|>"], normalized=True, special=False)
    return tokenizer


def mistral():
    tokenizer = sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    tokenizer.decoder = spaces_back(decoders.Strip(" ", 1, 0))
    add(tokenizer, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], normalized=False)
    begin(tokenizer, "<s>")
    return tokenizer


def gemma():
    tokenizer = sentencepiece(special=("<pad>", "<eos>", "<bos>", "<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = split(" ", "merged_with_previous")
    tokenizer.decoder = spaces_back()
    add(tokenizer, ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>"], normalized=False)
    add(tokenizer, ["<unused1>", *("\n" * k for k in range(2, 8)),
                    *(SPACE * k for k in range(2, 8))], normalized=False, special=False)
    begin(tokenizer, "<bos>")
    return tokenizer


def byte_level(pattern, special, n_vocab=1200, first=False):
    """first: special tokens have the lowest ids, not the highest."""
    pre_tokenizer = pre_tokenizers.Sequence([split(Regex(pattern)), plain_bytes()])
    tokenizer = trained(pre_tokenizer, n_vocab, special if first else [])
    add(tokenizer, special, normalized=False)
    return tokenizer


def with_options(tokenizer, **options):
    text = json.loads(tokenizer.to_str())
    text["model"].update(options)
    return Tokenizer.from_str(json.dumps(text))


def llama_3():
    tokenizer = byte_level(LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    name = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        begin_template(name, tokenizer.token_to_id(name))])
    return with_options(tokenizer, ignore_merges=True)


def qwen():
    tokenizer = byte_level(QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                                    use_regex=False)
    add(tokenizer, ["<tool_call>", "<think>", "</think>"], normalized=False, special=False)
    return tokenizer


def glm_4():
    tokenizer = byte_level(LLAMA3, ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>",
                                    "<|assistant|>"])
    begin(tokenizer, "[gMASK]", "<sop>")
    return with_options(tokenizer, ignore_merges=True)


def tekken():
    tokenizer = byte_level(TEKKEN, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], first=True)
    begin(tokenizer, "<s>")
    return with_options(tokenizer, ignore_merges=True)


def phrases():
    """Merges across spaces: the text can seldom be cut."""
    tokenizer = sentencepiece(n_vocab=700, phrases=True)
    tokenizer.normalizer = prepend_and_replace()
    tokenizer.decoder = spaces_back(decoders.Strip(" ", 1, 0))
    add(tokenizer, ["<s>", "</s>"], normalized=True, special=False, single_word=True)
    return tokenizer


def unknown():
    """No bytes to fall back to."""
    tokenizer = sentencepiece(n_vocab=400, fallback=())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), SPACE),
        normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return tokenizer


def partial():
    """Some bytes have a token, so unknown characters and fallen-back ones mix."""
    tokenizer = sentencepiece(n_vocab=400, fallback=range(0x80, 0xE4), fuse_unk=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True),
        pre_tokenizers.Digits(individual_digits=True)])
    tokenizer.decoder = decoders.Sequence([
        decoders.Strip(SPACE, 2, 0), decoders.Metaspace(SPACE, prepend_scheme="never"),
        decoders.ByteFallback()])
    add(tokenizer, ["<s>", "[INST]"], normalized=False, lstrip=True)
    return tokenizer


FAMILIES = {
    "llama-2": llama_2,
    "llama-2-normalized": lambda: llama_2(normalized=True),
    "llama-3": llama_3,
    "yi": yi,
    "mistral": mistral,
    "mistral-tekken": tekken,
    "qwen": qwen,
    "phi-3": phi_3,
    "glm-4": glm_4,
    "gemma": gemma,
    "phrases": phrases,
    "unknown": unknown,
    "partial": partial,
}


def hashed(data):
    """FNV-1a, cut to 24 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{value & 0xFFFFFF:06x}"


def hashed_ids(ids):
    return hashed(b"".join(i.to_bytes(4, "little") for i in ids))


def random_ids(n_ids, low, high):
    """Lists of ids: of bytes, or of any; the test makes the same ones."""
    state = 1

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n

    for _ in range(N_RANDOM):
        skip, few, n = draw(2), draw(2), draw(13)
        yield bool(skip), [low + draw(high - low) if few else draw(n_ids) for _ in range(n)]


def byte_range(tokenizer):
    vocab = tokenizer.get_vocab()
    ids = [i for t, i in vocab.items() if len(t) == 6 and t.startswith("<0x")]
    ids = ids or [vocab[c] for c in pre_tokenizers.ByteLevel.alphabet() if c in vocab]
    return (min(ids), max(ids) + 1) if ids else (0, 300)


def goldens(name, tokenizer, shared):
    low, high = byte_range(tokenizer)
    n_ids = max(tokenizer.get_vocab().values()) + 4
    # A special token that the normalizer changes is shown by the reference library even so.
    skips = name != "llama-2-normalized"
    encoded = [tokenizer.encode(text, add_special_tokens=i % 5 == 0).ids
               for i, text in enumerate(shared)]
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded]
    drawn = [tokenizer.decode(ids, skip_special_tokens=skip and skips)
             for skip, ids in random_ids(n_ids, low, high)]
    return {
        "tokenizer": json.loads(tokenizer.to_str()), "low": low, "high": high, "n_ids": n_ids,
        "skips": skips, "encoded": "".join(map(hashed_ids, encoded)),
        "decoded": "".join(hashed(text.encode()) for text in decoded),
        "random": "".join(hashed(text.encode()) for text in drawn),
    }


def main():
    rng = random.Random(20250808)
    ADDED.extend(NAMES)
    shared = texts(rng)
    write(DATA / "families" / "texts.json", shared)
    for name, make in FAMILIES.items():
        tokenizer = Tokenizer.from_str(make().to_str())
        write(DATA / "families" / f"{name}.json", goldens(name, tokenizer, shared))


if __name__ == "__main__":
    main()
