/* error.h - one way to fail: a negative code to act on and a sentence to read.
 *
 * Thread: any.  Memory: the struct lives on the caller's stack; nothing is allocated. */
#ifndef ENGINE_BASE_ERROR_H
#define ENGINE_BASE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ERR_INVALID = -1,     /* the input breaks a rule; the text says which */
    ERR_NOMEM = -2,       /* memory or a planned pool could not be allocated */
    ERR_FULL = -3,        /* no capacity now: an answer to act on, not a fault */
    ERR_NOT_FOUND = -4,   /* a file, tensor, model or id does not exist */
    ERR_IO = -5,          /* the operating system refused */
    ERR_UNSUPPORTED = -6, /* well-formed, but this program cannot do it */
    ERR_DEVICE = -7,      /* the backend failed; sticky */
    ERR_TOO_LONG = -8,    /* prompt or context longer than the model allows */
    ERR_NUMERIC = -9,     /* a result is not a number: fails one request, not the backend */
    ERR_STOPPED = -10,    /* the caller wanted no more of it */
};

struct error {
    int code;
    char text[640];
    const char *param; /* which of a request's parameters it is about, a constant; NULL: none */
};

/* Writes code and text (err may be NULL), about no parameter, and returns code, so that a failing
 * path is one statement. */
int error_set(struct error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Records the parameter that the error is about (err may be NULL) and returns code. */
int error_about(struct error *err, const char *param, int code);

#ifdef __cplusplus
}
#endif

#endif
