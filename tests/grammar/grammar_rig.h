/* grammar_rig.h - the tokenizer of a model, grammars of its tokens, and the texts that they take.
 *
 * Any failure fails the calling test.
 *
 * Thread: the test's.  Memory: a group's tokenizer and vocabulary live as long as its tests. */
#ifndef TESTS_GRAMMAR_GRAMMAR_RIG_H
#define TESTS_GRAMMAR_GRAMMAR_RIG_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/grammar/grammar_cache.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/test.h"

enum { RIG_EOS = 8186 }; /* the model's end token */

extern struct tokenizer *rig_tokenizer;
extern struct grammar_vocab *rig_vocab; /* NULL: this build has no grammars */

/* Makes a cache with a vocabulary of its own. */
struct grammar_cache *rig_cache(size_t max_bytes);
/* Returns the text's grammar, which the caller owns a reference to. */
struct grammar *rig_get(struct grammar_cache *cache, enum grammar_kind kind, const char *text);
/* Tells whether a grammar takes a text, token by token; ends: and its end behind it. */
bool rig_takes(struct grammar *grammar, const char *text, bool ends);

/* Runs the program's tests with the model that its argument names. */
int rig_main(int argc, char **argv);

#endif
