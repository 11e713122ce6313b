/* gguf_pre.c - see gguf_pre.h.  The patterns are those of the models' own tokenizer.json. */
#include "engine/gguf/gguf_pre.h"

#include <stdio.h>
#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OTHERS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define LOWER                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define UPPER                                                                                      \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
#define OTHERS_AND_SLASHES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"

static const char three_digits[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHERS SPACES;
static const char one_digit[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS SPACES;
static const char with_marks[] = CONTRACTIONS
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES;
static const char by_case[] =
    LOWER CONTRACTIONS "?" UPPER CONTRACTIONS "?|\\p{N}{1,3}" OTHERS_AND_SLASHES SPACES;
static const char seed[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES;
/* Threes of digits, counted from a number's end. */
static const char thousands[] = "\\d{1,3}(?=(?:\\d{3})*\\b)";
static const char tekken[] = LOWER UPPER "|\\p{N}" OTHERS_AND_SLASHES SPACES;

static const struct gguf_pre known[] = {
    {.name = "gpt-2"},
    {.name = "phi-2"},
    {.name = "smollm", .splits_digits = true},
    {.name = "starcoder", .splits_digits = true},
    {.name = "refact", .splits_digits = true},
    {.name = "command-r", .splits_digits = true, .is_composed = true},
    {.name = "olmo"},
    {.name = "exaone4"},
    {.name = "llama-bpe", .pattern = three_digits, .ignores_merges = true, .adds_begin = true},
    {.name = "llama3", .pattern = three_digits, .ignores_merges = true, .adds_begin = true},
    {.name = "llama-v3", .pattern = three_digits, .ignores_merges = true, .adds_begin = true},
    {.name = "lfm2", .pattern = three_digits, .ignores_merges = true, .adds_begin = true},
    {.name = "dbrx", .pattern = three_digits},
    {.name = "smaug-bpe", .pattern = three_digits},
    {.name = "glm4", .pattern = three_digits},
    {.name = "chatglm-bpe", .pattern = three_digits},
    {.name = "qwen2", .pattern = one_digit, .is_composed = true},
    {.name = "deepseek-r1-qwen", .pattern = one_digit},
    {.name = "qwen35", .pattern = with_marks, .is_composed = true},
    {.name = "seed-coder", .pattern = seed},
    {.name = "gpt-4o", .pattern = by_case},
    {.name = "cohere2moe", .pattern = by_case, .numbers = thousands},
    {.name = "tiny_aya", .pattern = by_case, .numbers = thousands},
    {.name = "tekken", .pattern = tekken, .ignores_merges = true, .adds_begin = true},
};

enum { N_KNOWN = sizeof(known) / sizeof(*known) };

const struct gguf_pre *gguf_pre_find(const char *name, size_t n) {
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0) return &known[i];
    return NULL;
}

static bool is_same_pattern(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

const struct gguf_pre *gguf_pre_like(const struct gguf_pre *like) {
    for (size_t i = 0; i < N_KNOWN; i++) {
        const struct gguf_pre *pre = &known[i];
        if (is_same_pattern(pre->pattern, like->pattern) &&
            is_same_pattern(pre->numbers, like->numbers) &&
            pre->splits_digits == like->splits_digits && pre->is_composed == like->is_composed &&
            pre->ignores_merges == like->ignores_merges)
            return pre;
    }
    return NULL;
}

void gguf_pre_text(char text[GGUF_PRE_TEXT]) {
    size_t n = 0;
    for (size_t i = 0; i < N_KNOWN && n < GGUF_PRE_TEXT; i++)
        n += (size_t)snprintf(text + n, GGUF_PRE_TEXT - n, "%s%s", i ? ", " : "", known[i].name);
}
