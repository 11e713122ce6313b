/* line_reader.h - lines of a person: with editing and a history where libedit is installed, which
 * is found when the program runs.
 *
 * Thread: main.  Memory: lines are the caller's. */
#ifndef SERVER_TERMINAL_LINE_READER_H
#define SERVER_TERMINAL_LINE_READER_H

#include <stdbool.h>

struct line_reader {
    char *(*edit)(const char *prompt); /* NULL: lines are read as the terminal gives them */
    int (*remember)(const char *line);
    void *library;
    bool is_terminal; /* standard input and output are one: a prompt is shown */
};

void line_reader_open(struct line_reader *out);
void line_reader_close(struct line_reader *reader);
/* Returns a line without its end, which the caller frees; NULL: there is none any more, or a signal
 * came. */
char *line_reader_read(struct line_reader *reader, const char *prompt);

#endif
