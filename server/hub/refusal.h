/* refusal.h - what an answer of the hub that is no success means, in a sentence with what to do.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_HUB_REFUSAL_H
#define SERVER_HUB_REFUSAL_H

struct error;
struct hub_answer;
struct hub_name;
struct hub_settings;

/* Fills *err and returns its code. */
int hub_refuse(const struct hub_answer *answer, const struct hub_settings *settings,
               const struct hub_name *name, struct error *err);

#endif
