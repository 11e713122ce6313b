/* alibi.h - the slopes of attention with linear biases (ALiBi, arXiv:2108.12409, section 3).
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_ALIBI_H
#define ENGINE_MODEL_ALIBI_H

#include <stdint.h>

/* Computes slopes [n_heads], each times `scale`.  With a power of two of heads, head i's is
 * 2^(-most (i + 1) / n_heads).  Otherwise the heads behind the largest power of two take every
 * other slope of twice as many heads, from the first one on.  most is 8 unless a model says so. */
void alibi_slopes(float *slopes, uint32_t n_heads, double most, double scale);

#endif
