/* health_command.h - `quire health`: asks the server that these settings start whether it works.
 *
 * Thread: main.  Memory: freed on return. */
#ifndef SERVER_HEALTH_COMMAND_H
#define SERVER_HEALTH_COMMAND_H

struct error;
struct options;

void health_print_help(void);
/* Asks /health of the options' host and port, with TLS if they name a certificate.  Returns 0 if it
 * answers that all is well, or ERR_IO, with what it answers in err. */
int health_command(const struct options *options, struct error *err);

#endif
