/* tokenize.h - POST /tokenize and /detokenize, GET /tokenizer_info.
 *
 * Thread: loop; the work itself runs as a job (job.h).  Memory: each job owns its own. */
#ifndef SERVER_OPS_TOKENIZE_H
#define SERVER_OPS_TOKENIZE_H

struct http_exchange;
struct request_table;
struct server;

/* The members of the bodies; NULL ends the lists. */
extern const struct request_table *const tokenize_tables[];
extern const struct request_table *const detokenize_tables[];

void tokenize_handle(struct server *server, struct http_exchange *exchange);
void detokenize_handle(struct server *server, struct http_exchange *exchange);
void tokenizer_info_handle(struct server *server, struct http_exchange *exchange);

#endif
