/* model_summary.h - the line at start that says what was taken from the files of a model's
 * directory: end tokens, the begin token, sampling, the chat template; and one that says what was
 * not.
 *
 * Thread: loop.  Memory: none is kept. */
#ifndef SERVER_MODEL_SUMMARY_H
#define SERVER_MODEL_SUMMARY_H

#include <stdbool.h>

struct buffer;
struct chat_template;
struct engine_info;
struct model_config;
struct model_load;
struct tokenizer;
struct weight_tally;

/* Logs both lines; the second one only where there is something to tell. */
void model_summary_log(const struct model_load *load, const struct engine_info *info);

/* Writes the end tokens, as in the line. */
void model_summary_ends(struct buffer *out, const struct model_config *model,
                        const struct tokenizer *tokenizer);
/* Writes the begin token, as in the line. */
void model_summary_begin(struct buffer *out, const struct model_config *model,
                         const struct tokenizer *tokenizer);
/* Writes where the chat template is from, as in the line. */
void model_summary_template(struct buffer *out, const struct chat_template *chat);
/* Writes the formats of weights, their shares, and what is unpacked.  Plain ones are left out
 * unless has_plain. */
void model_summary_weights(struct buffer *out, const struct model_config *model,
                           const struct weight_tally *tally, bool has_plain);

#endif
