"""Texts whose tokens a tokenizer easily gets wrong: 20 of each kind, 200 in all.

Characters that cannot be seen, or that editors change, are written as escapes.  The last kind puts
parts of the others together at random, always the same ones."""
import random

CODE = [
    "def f(x):\n        return x[1:]\n", "for (int i = 0; i < n; i++) {\n\ta[i] += b[i];\n}",
    '{"a": [1, 2.5e-3, null], "b\\n": "\\u00e9"}', "key:\n  - one\n  - two: {three: 4}\n",
    "<b>bold</b><table><tr><td>1</td></tr></table>", "cat a.txt | grep -v '^#' > \"$OUT\" 2>&1 &&\\\n  ls",
    "SELECT * FROM t WHERE a<>'x''y' AND b IS NOT NULL;", r"^(?:[a-z]\w+|\d{2,})(?=\s*$)|\\.\b",
    "all: x.o\n\t$(CC) -o $@ $^\n.PHONY: all", r"\frac{\partial f}{\partial x} \le \sum_{i=1}^{n} x_i^2",
    "fn main<'a>(x: &'a str) -> Result<(), Box<dyn Error>> { Ok(()) }", "@@ -1,4 +1,5 @@\n-old\n+new\n  same",
    "a:hover>b::after{content:'\\201C';margin:-1px auto 0}", "QmFzZTY0IGlzIG5vdCB0ZXh0Lg==",
    "user@example.org http://a.b/c?d=e&f=%20#g", "| a | b |\n|---|:-:|\n| 1 | `x` |", "mov rax,[rbp-0x18]; je .L3",
    "00000000  7f 45 4c 46 02 01 01 00  |.ELF....|", "one\r\ntwo\r\n\r\nthree\r",
    "!function(e,t){e.x=t||{}}(this,void 0);",
]
SCRIPTS = [
    "你好，世界！", "繁體中文與簡体字混在一起。", "ひらがなとカタカナと漢字", "ﾊﾝｶｸ ｶﾀｶﾅ", "한국어 문장입니다.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u3000全角\u3000空白\u3000", "「引用」『二重』【括弧】、。・〜",
    "𠀀𠮷𡃁𪚥", "русский текст, Ёлка и ещё", "Ελληνικά κείμενο ΐ", "עברית עם מספרים 123",
    "العربية من اليمين ١٢٣", "हिन्दी में लिखा हुआ", "ภาษาไทยไม่มีช่องว่าง", "தமிழ் எழுத்துக்கள்",
    "ქართული ენა", "Հայերեն տեքստ", "ខ្មែរ និង ລາວ", "ᐃᓄᒃᑎᑐᑦ ᏣᎳᎩ",
]
EMOJI = [
    "\U0001f642", "\U0001f469\u200d\U0001f680", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f44d\U0001f3fd\U0001f44d\U0001f3ff", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\U0001f1e9\U0001f1ea\U0001f1eb",
    "1\ufe0f\u20e3 2\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\u2764\ufe0f\u200d\U0001f525", "\u2764\ufe0e text", "\u200d\u200d", "x\u200dy", "\U0001f642" * 40,
    "\U0001f642\u200d\u2640\ufe0f caf\u00e9 \u4f60", "a\U0001f4a9b\U0001f4a9c", "\u263a\u2639\u2603\u2744",
    "\U0001fae0\U0001faf6\U0001f6dd", "\U0001f468\U0001f3fe\u200d\U0001f91d\u200d\U0001f468\U0001f3fb",
    "\U0001f1e6", "no\ufe0fthing \ufe0f\ufe0f",
]
MARKS = [
    "cafe\u0301 caf\u00e9", "Z\u0351\u036b\u0343\u036a\u0302\u0361a\u035b\u034al\u0302g\u0349o\u0315", "e\u0301\u0301\u0301",
    "Vi\u00ea\u0323t Nam Vi\u1ec7t", "\u0301alone", " \u0301after a space", "\u0915\u094d\u0937\u093f",
    "\u0643\u0650\u062a\u064e\u0627\u0628\u064c", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "n\u0303 \u00f1 N\u0303",
    "\ufb01 \ufb04 \u0133", "\uff26\uff35\uff2c\uff2c \uff57\uff49\uff44\uff45", "a\u200fb\u200ec\u202ed\u202c",
    "soft\u00adhyphen", "zero\u200bwidth\u200bspace", "\ufeffmark in front", "\u01c6 \u01c5 \u1e9e \u0130 \u0131",
    "\u0e01\u0e33\u0e49 \u0e01\u0e49\u0e33", "o\u0308\u0304 \u022b", "\u1100\u1161\u11a8\u0301",
]
DIGITS = [
    "1234567 and 89.5%", "0", "007", str(7 ** 120), "3." + "141592653589793238462643383279" * 8, "1,234,567.89",
    "-1e-09 +2E+10 .5 5.", "192.168.000.001:8080", "2026-11-30T03:04:05.678Z", "+49 (0)30 123-456",
    "0x7fffFFFF 0b1011 0o777", "\u0661\u0662\u0663\u0664\u0665", "\u0967\u0968\u0969\u096a", "\uff11\uff12\uff13\uff14",
    "x\u00b2 + y\u00b3 = \u00bd\u00be", "\u216b \u2160\u2164 \u3287", "a1b22c333d4444e55555", "12 345 678\u00a0901\u202f234",
    "1" * 257, "9\u20ac 10$ \u00a35 7\u00b0",
]
SPACES = [
    "  two  spaces   three", " lead", "trail ", " ", "  ", " " * 3, " " * 4 + "x", " " * 7 + "x" + " " * 8, " " * 16, " " * 31 + "y",
    " " * 33, " " * 100 + "end", "\t", "\t\t x\t", " \t \t", "line\n\n\n\tend\n", "\n" * 17, "a \n b\n \nc",
    "\u00a0nbsp\u3000wide\u2003em\u2009thin", "\x0b\x0c\u0085\u2028\u2029x",
]
SPECIAL = [
    "<|im_start|>user\nHi<|im_end|>", "<|endoftext|>", "a<|endoftext|>b", "<|im_start|><|im_start|>", "<|im_start", "<|im_end|>>",
    " <|im_end|> ", "<start_of_turn>model\n<end_of_turn>", "<bos>x<eos>", "<s></s><unk><pad>", "<unused0><unused98>",
    "<0x0A><0xFF>", "\u2581under \u2581\u2581line", "\u0120byte \u010a letters", "<repo_name>a/b<file_sep>c", "[INST] x [/INST]",
    "[toxicity=0]", "<start_of_image>", "<mask>[MASK]", "<|\u200bim_start|>",
]
WORDS = [
    "Hello world", "", "don't can't we'll I'LL THEY'RE", "don\u2019t it\u2019s", "camelCaseWord XMLHttpRequest", "SCREAMING_SNAKE_CASE",
    "well-known--words---dash\u2014dash\u2013", "....!!!???\u2026", "a" * 300, "ab" * 150, "Donaudampfschifffahrtsgesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis", "x_1^2 + y_2 \u2265 \u221a3 \u222b \u2202", "\u201cquoted\u201d \u2018single\u2019 \u00abfr\u00bb",
    "it's'n't''s", "'s 't 're", "#hash @at &and *star ~tilde `tick", "(((nested)))[[]]{{}}", "caf\u00e9na\u00efve\u00c5ngstr\u00f6m", "\u00df\u1e9e SS \ufb05",
]
CONTROLS = [
    "\x01\x02\x03", "a\x00b", "\x1b[31mred\x1b[0m", "\x7f", "\u0080\u009f", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\ue000\uf8ff",
    "\U000f0000", "\x08\x08bell\x07", "\u2066iso\u2069", "\u180e", "\u2060word\u2060joiner", "\u061c", "\U0001d54f\U0001d4d0\U0001d7d8",
    "\u0300\u0301\u0302", "\ufff9anno\ufffatation\ufffb", "\U000e0001", "\r\r\n\n\r",
]
KINDS = (CODE, SCRIPTS, EMOJI, MARKS, DIGITS, SPACES, SPECIAL, WORDS, CONTROLS)


def mixtures(n=20):
    draw = random.Random(200)
    for _ in range(n):
        parts = [draw.choice(draw.choice(KINDS))[:40] for _ in range(draw.randint(3, 9))]
        yield draw.choice(("", " ", "\n")).join(parts)


HARD_TEXTS = [text for kind in (*KINDS, mixtures()) for text in kind]
assert len(HARD_TEXTS) == 200, len(HARD_TEXTS)
