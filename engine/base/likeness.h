/* likeness.h - how much two words differ, to name the one that was likely meant.
 *
 * Thread: any.  Memory: none beside the stack. */
#ifndef ENGINE_BASE_LIKENESS_H
#define ENGINE_BASE_LIKENESS_H

enum { LIKENESS_MAX_BYTES = 64 };

/* Returns how many bytes have to be put in, left out, changed or exchanged with their neighbour to
 * make one of the words of the other; the case of letters does not count, and '_' is '-'.  Longer
 * words than LIKENESS_MAX_BYTES differ in everything. */
unsigned likeness_distance(const char *a, const char *b);

/* Returns the most that a word may differ from the one that was meant: a third of its bytes, at
 * most 3. */
unsigned likeness_most(const char *word);

#endif
