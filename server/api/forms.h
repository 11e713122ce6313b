/* forms.h - the members by which a request says what form its answer must have, under the names of
 * every server that has such a member.
 *
 *   response_format, text.format, output_format, output_config.format   an object with a type
 *   structured_outputs, guided_*                                        vLLM's
 *   json_schema, grammar, regex, ebnf, format                           those of other servers
 *
 * Every API takes all of them, so none is ever left out silently.  Only one may say something.
 *
 * Thread: any one.  Memory: the request owns what comes of them (structured.h). */
#ifndef SERVER_API_FORMS_H
#define SERVER_API_FORMS_H

struct request_table;

extern const struct request_table request_forms;

#endif
