/* content.h - what the elements of typed lists say to the model, in the words of every dialect.
 *
 *   text, input_text, refusal, …              their text
 *   document, search_result, any unknown one  the text in their members, if there is some
 *   image, audio, video, PDF, …               a 400 by name: they say what the model cannot read
 *   an unknown one without text               nothing; its type is named once in the log
 *
 * So a body with a part that did not exist when this was written is answered like one without it.
 *
 * Thread: any.  Memory: results are new; they may share strings with the body. */
#ifndef SERVER_API_CONVERSATION_CONTENT_H
#define SERVER_API_CONVERSATION_CONTENT_H

#include <stdbool.h>
#include <jansson.h>

struct api_error;
struct buffer;
struct skipped_types;

struct content_rules {
    const char *param;             /* of the body, for errors */
    const char *noun;              /* what the API calls an element: "parts" */
    const char *list;              /* the kind of list, for the log: "content" */
    struct skipped_types *skipped; /* NULL: nothing is logged */
    struct api_error *err;
};

/* Appends what a part says.  where: its place in the body, for errors.  *has_text false: it says
 * nothing and is skipped. */
int content_add(const struct content_rules *rules, const char *where, const json_t *part,
                struct buffer *out, bool *has_text);

/* Reads content into a new string: a string, a part, or a list of parts, whose texts are joined by
 * line ends; null and NULL say nothing.  An object that is no part and has no text is given as
 * JSON. */
int content_read(const struct content_rules *rules, const char *where, const json_t *content,
                 json_t **out);

/* Returns the type of an element, or NULL. */
const char *content_type(const json_t *element);

#endif
