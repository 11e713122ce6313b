#!/usr/bin/env python3
"""Makes tests/tokenizer/data: tokenizers and what the reference library does with them.

The `tokenizers` library trains a GPT-2 style and a Llama-3 style tokenizer on the held-out text,
and encodes and decodes the same strings with those, with the shipped one, and with small variants
of every supported component.  The C tests then compare.  Everything is seeded: the same library
version writes the same bytes.

    python3 scripts/make_tokenizer_goldens.py
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "tokenizer" / "data"
MODEL = ROOT / "models" / "quire-22m"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The o200k pattern: classes of case, and a contraction inside a word.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\u0085", "\u00a0", "\u1680", "\u2003",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'\u017f", "\u2019s",
                "''s", "'sx", "' s"]
EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f4bb", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
         "\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3"]
MARKS = ["e\u0301", "\u00e9", "a\u0323\u0307", "a\u0307\u0323", "\u1e9b\u0323", "\u212b", "\u2126",
         "\ufb01", "\uac00", "\u1100\u1161\u11a8", "\u0915\u094d\u0937", "\u0e01\u0e33", "\u0344",
         "\u0958", "\ufdfa", "\u0130", "\u03a3\u03c2", "\u01c5", "\u1fbc"]
SCRIPTS = ["日本語のテキスト", "中文字符測試", "한국어 문장", "Привет, мир", "مرحبا بالعالم", "שלום עולם",
           "नमस्ते दुनिया", "สวัสดีชาวโลก", "Ελληνικά", "ქართული", "አማርኛ", "ᏣᎳᎩ", "Tiếng Việt",
           "ſtraße ß", "ñandú"]
DIGITS = ["0", "7", "12", "123", "1234", "12345678901234567890", "3.14", "1,000,000", "٣٤٥", "१२३",
          "½", "Ⅷ", "²", "①", "𝟘𝟙"]
CODE = ["int main(void) { return 0; }\n", "def f(x):\n    return x ** 2\n\n",
        "if (a<b && c>>d) {\n\t\tx += 1;\n\t}\n", '{"key": [1, 2.5e-3, null]}', "<a href='x'>y</a>",
        "https://example.org/a?b=c&d=%20", "x->y::z <<= 0xFFu;", "C:\\dir\\file.txt",
        "#!/bin/sh\nset -e\n", "a_b-c.d/e", "/*...*/ //---", "$ $$ ^^^ ~~~ ```"]
CONTROL = ["\x00", "\x01", "\x7f", "\x1b[0m", "\x80", "\x9f", "\xad", "\u200d", "\u202e",
           "\U000e0001", "\ue000", "\uffff", "\U0010ffff", "\ufffd", "\u0378"]
ADDED = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>",
         "<|eot_id|>", "<|pad|>", "<|pa", "<|pad|><|pad|>", "<left>", "<right>", "<both>", "word",
         "Née", "<|endoftext", "<|", "<long>", "<longer>"]


def corpus():
    return (MODEL / "eval" / "held_out.txt").read_text(encoding="utf-8")


def strings(rng, n):
    """n strings: each list whole, then mixtures of them and of random characters."""
    text = corpus()
    words = sorted(set(text[:200000].split()))
    kinds = [SPACES, CONTRACTIONS, EMOJI, MARKS, SCRIPTS, DIGITS, CODE, CONTROL, ADDED, words]
    out = ["", *(s for kind in kinds[:-1] for s in kind)]
    out += [" " * k for k in range(2, 20)] + ["\n" * k for k in range(2, 12)]
    out += ["a" * k for k in (63, 64, 65, 66, 200)]
    out += ["ab" * 40, "e\u0301" * 50, "9" * 100, " \n" * 50, "\t " * 40, "é" * 70]
    while len(out) < n:
        choice = rng.random()
        if choice < 0.35:
            pieces = (rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, 10)))
            out.append("".join(p + rng.choice(["", "", " ", *SPACES]) for p in pieces))
        elif choice < 0.55:
            start = rng.randrange(len(text) - 200)
            out.append(text[start : start + rng.randint(1, 120)])
        elif choice < 0.75:
            out.append("".join(random_char(rng) for _ in range(rng.randint(1, 24))))
        elif choice < 0.85:
            out.append("".join(rng.choice(SPACES + ["a", "1", "."])
                               for _ in range(rng.randint(1, 16))))
        else:
            out.append(rng.choice(["", " "]).join(rng.choice(ADDED + words + SPACES)
                                                  for _ in range(rng.randint(1, 8))))
    return out


def random_char(rng):
    top = rng.choice([0x7F, 0xFF, 0x24F, 0x7FF, 0x2FFF, 0xFFFF, 0x1FFFF])
    while True:
        c = chr(rng.randint(0, top))
        if c.isprintable() or (ord(c) < 0x250):
            return c


def encodings(tokenizer, texts, rng):
    """[text, ids, add_special, decoded or null when it is the text again]"""
    cases = []
    for text in texts:
        add_special = rng.random() < 0.2
        ids = tokenizer.encode(text, add_special_tokens=add_special).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        cases.append([text, ids, int(add_special), None if decoded == text else decoded])
    return cases


def decodings(tokenizer, rng, n):
    """[ids, skip_special, text] of random ids: mostly not UTF-8, some that do not exist."""
    top = max(tokenizer.get_vocab().values())
    spelled = tokenizer.get_vocab()
    alphabet = [spelled[c] for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c in spelled]
    cases = []
    for _ in range(n):
        few = rng.random() < 0.6
        ids = [rng.choice(alphabet) if few else rng.randint(0, top + 3)
               for _ in range(rng.randint(0, 12))]
        skip = rng.random() < 0.5
        cases.append([ids, int(skip), tokenizer.decode(ids, skip_special_tokens=skip)])
    return cases


def trained(pre_tokenizer, n_vocab, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus().splitlines(keepends=True), trainer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def plain_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def begin_template(name, id_):
    return processors.TemplateProcessing(single=f"{name} $A", pair=f"{name} $A {name} $B",
                                         special_tokens=[(name, id_)])


def gpt2():
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 2000, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens([
        AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
        AddedToken("<long>"), AddedToken("<longer>", normalized=False), AddedToken("Née"),
        AddedToken("  ", normalized=False),
    ])
    text = json.loads(tokenizer.to_str())
    # The older spelling.
    text["model"]["merges"] = [" ".join(pair) for pair in text["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(text)), text


def llama3():
    tokenizer = trained(pre_tokenizers.Sequence([split(Regex(LLAMA3)), plain_bytes()]), 2500, [])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(),
                                                    begin_template("<|begin_of_text|>", begin)])
    text = json.loads(tokenizer.to_str())
    text["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(text)), text


def variants():
    """name -> (normalizer, pre-tokenizer): every supported component at least once."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sequence = pre_tokenizers.Sequence
    table = {
        "nfc": (normalizers.NFC(), byte_level),
        "nfd": (normalizers.NFD(), byte_level),
        "nfkc": (normalizers.NFKC(), byte_level),
        "nfkd": (normalizers.NFKD(), byte_level),
        "lowercase": (normalizers.Lowercase(), byte_level),
        "replace string": (normalizers.Replace("a", "<b>"), byte_level),
        "replace regex": (normalizers.Replace(Regex(r"\s+|[xe]+"), "_"), byte_level),
        "prepend": (normalizers.Prepend("▁"), byte_level),
        "normalizers": (normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(),
                                              normalizers.NFC()]), byte_level),
        "prefix space": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "prefix space, no regex": (None, pre_tokenizers.ByteLevel(add_prefix_space=True,
                                                                  use_regex=False)),
        "digits": (None, sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])),
        "digit runs": (None, sequence([pre_tokenizers.Digits(individual_digits=False),
                                       plain_bytes()])),
        "o200k": (None, sequence([split(Regex(O200K)), plain_bytes()])),
        "string": (None, sequence([split(" "), plain_bytes()])),
        "lines": (None, sequence([split(Regex(r"^.|.$")), plain_bytes()])),
        "lookbehind": (None, sequence([split(Regex(r"(?<=[\s,])\w+\b")), plain_bytes()])),
        "nested": (None, sequence([split(Regex(r"\p{N}{1,3}")),
                                   sequence([split(Regex("[一-龥ぁ-ヿ]+")), split(Regex(LLAMA3))]),
                                   plain_bytes()])),
    }
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next",
                     "contiguous"):
        for invert in (False, True):
            for pattern in (r"\s", r"\d*"):
                name = f"{behavior}{' inverted' if invert else ''} {pattern}"
                table[name] = (None, sequence([split(Regex(pattern), behavior, invert),
                                               plain_bytes()]))
    return table


def variant(normalizer, pre_tokenizer, base):
    text = json.loads(json.dumps(base))
    tokenizer = Tokenizer.from_str(json.dumps(text))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def small_base():
    """A few merges and tokens, so that thirty variants stay small."""
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 340, ["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("Née"), AddedToken("WORD", single_word=True),
                          AddedToken("<both>", lstrip=True, rstrip=True)])
    return json.loads(tokenizer.to_str())


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n",
                    encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def main():
    rng = random.Random(20250101)
    shipped = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for name, tokenizer, text in (("gpt2", *gpt2()), ("llama3", *llama3()),
                                  ("shipped", shipped, None)):
        if text:
            write(DATA / name / "tokenizer.json", text)
        texts = strings(rng, 1800)
        cases = {"encode": encodings(tokenizer, texts, rng),
                 "decode": decodings(tokenizer, rng, 600)}
        write(DATA / name / "cases.json", cases)
    base = small_base()
    texts = strings(rng, 500)
    made = []
    for name, (normalizer, pre_tokenizer) in variants().items():
        tokenizer = variant(normalizer, pre_tokenizer, base)
        parts = {key: json.loads(tokenizer.to_str())[key]
                 for key in ("normalizer", "pre_tokenizer")}
        made.append({"name": name, "parts": parts,
                     "encode": encodings(tokenizer, rng.sample(texts, 120), rng)})
    write(DATA / "variants.json", {"base": base, "variants": made})


if __name__ == "__main__":
    main()
