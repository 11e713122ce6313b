/* compile_thread.h - compiles a grammar on a thread of its own, which has a large stack and may be
 * left behind.
 *
 *   caller ─► thread: grammar_compile() ─► caller
 *      └ asks often whether the result is still wanted, and whether the thread minds its limits
 *
 * The limits of grammar_compile() end it where the library looks at them.  A thread that does not
 * is left behind: it ends by itself, or with the process.  Where too many have been left, nothing
 * is compiled.
 *
 * Thread: any.  Memory: what is compiled. */
#ifndef ENGINE_GRAMMAR_COMPILE_THREAD_H
#define ENGINE_GRAMMAR_COMPILE_THREAD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/grammar/grammar.h"

struct compile_threads; /* opaque: those that have been left behind */

/* Knows of no thread yet.  ERR_NOMEM. */
int compile_threads_create(struct compile_threads **out);
void compile_threads_destroy(struct compile_threads *threads); /* NULL is allowed */

/* Does what grammar_compile() does.  is_low: with a low priority.  ERR_UNSUPPORTED: too many
 * threads have been left behind. */
int compile_thread_run(struct compile_threads *threads, struct grammar **out,
                       const struct grammar_vocab *vocab, enum grammar_kind kind, const char *text,
                       size_t n, const struct grammar_limits *limits, bool is_low,
                       struct error *err);

#endif
