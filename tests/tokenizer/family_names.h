/* family_names.h - the small tokenizers of DATA_DIR/families, one of each model family.
 *
 * Thread: any.  Memory: none. */
#ifndef TESTS_TOKENIZER_FAMILY_NAMES_H
#define TESTS_TOKENIZER_FAMILY_NAMES_H

static const char *const FAMILIES[] = {"llama-2", "llama-2-normalized",
                                       "llama-3", "yi",
                                       "mistral", "mistral-tekken",
                                       "qwen",    "phi-3",
                                       "glm-4",   "gemma",
                                       "phrases", "unknown",
                                       "partial", "falcon",
                                       "gpt-oss"};

#endif
