/* template_probe.h - what a chat template leaves out of a conversation without an error.
 *
 * gpt-oss's writes the first of several calls alone, and no instructions behind the first turn;
 * DeepSeek R1's writes calls, and shows no tools.  What is left out is found at the start, by three
 * conversations with words that nothing else says.
 *
 * Thread: main, at the start.  Memory: none of its own. */
#ifndef SERVER_SETTINGS_TEMPLATE_PROBE_H
#define SERVER_SETTINGS_TEMPLATE_PROBE_H

#include <stdbool.h>
#include <jansson.h>

struct template;

/* Tells whether the template writes nothing of a system message behind the first turn.  own: what
 * it may write as its own (chat_template.h).  One that raises leaves nothing out. */
bool template_drops_systems(const struct template *template, const json_t *own);
/* Tells whether the template writes only some of the calls of a message. */
bool template_drops_calls(const struct template *template, const json_t *own);
/* Tells whether the template writes nothing of a request's tools. */
bool template_drops_tools(const struct template *template, const json_t *own);

#endif
