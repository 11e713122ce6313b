/* error.c - see error.h. */
#include "engine/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *err, int code, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
    }
    return code;
}
