/* handlers.h - the functions that answer routes, by the file that has them.
 *
 * Each gets a whole request, and answers it once.
 *
 * Thread: loop; what takes time runs as a job (job.h).  Memory: each job owns its own. */
#ifndef SERVER_API_HANDLERS_H
#define SERVER_API_HANDLERS_H

struct api_error;
struct buffer;
struct http_exchange;
struct request_table;
struct server;

typedef void route_handler(struct server *server, struct http_exchange *exchange);

/* openai.c and chat/chat.c: the OpenAI shape.  /render writes the ids of the prompt's tokens, which
 * are not run. */
route_handler openai_completions, openai_render;
route_handler chat_completions, chat_render;

/* messages/messages.c: Anthropic's shape. */
route_handler messages_create, messages_count;
/* Writes {"type":"error","error":{…}}; an api_error_writer. */
void messages_write_error(const struct api_error *err, struct buffer *out);

/* responses/responses.c: OpenAI's shape of answers that are lists of items. */
route_handler responses_create;
/* Writes OpenAI's error object, with this API's names of members; an api_error_writer. */
void responses_write_error(const struct api_error *err, struct buffer *out);

/* responses/stored.c: responses that are stored, and the arguments of the list of their items. */
route_handler responses_show, responses_delete, responses_cancel, responses_items;
extern const struct request_table responses_item_arguments;

route_handler cancel_handle; /* cancel.c */

/* ../ops/tokenize.c, and the members of the bodies; NULL ends the lists. */
route_handler tokenize_handle, detokenize_handle, tokenizer_info_handle;
extern const struct request_table *const tokenize_tables[];
extern const struct request_table *const detokenize_tables[];

route_handler health_live, health_health, health_ready, health_version, health_metrics;
route_handler models_list, models_show; /* ../ops/models.c */
route_handler state_handle;             /* ../ops/state.c */
route_handler ui_handle;                /* ../ui/ui.c */

#endif
