/* model_summary.h - the line at start that says what was taken from the files of a model's
 * directory: end tokens, the begin token, sampling, the chat template; and one that says what was
 * not.
 *
 * Thread: loop.  Memory: none is kept. */
#ifndef SERVER_MODEL_SUMMARY_H
#define SERVER_MODEL_SUMMARY_H

struct engine_info;
struct model_load;

/* Logs both lines; the second one only where there is something to tell. */
void model_summary_log(const struct model_load *load, const struct engine_info *info);

#endif
