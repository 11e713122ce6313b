/* error.c - see error.h. */
#include "engine/base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

int error_set(struct error *err, int code, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        err->param = NULL;
        vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
    }
    return code;
}

int error_about(struct error *err, const char *param, int code) {
    if (err) err->param = param;
    return code;
}
