/* tokenize.h - POST /tokenize and /detokenize, GET /tokenizer_info.
 *
 * Thread: loop; the work itself runs as a job (job.h).  Memory: each job owns its own. */
#ifndef SERVER_OPS_TOKENIZE_H
#define SERVER_OPS_TOKENIZE_H

struct http_exchange;
struct server;

void tokenize_handle(struct server *server, struct http_exchange *exchange);
void detokenize_handle(struct server *server, struct http_exchange *exchange);
void tokenizer_info_handle(struct server *server, struct http_exchange *exchange);

#endif
