/* provenance.c - see provenance.h. */
#include "engine/sparsity/provenance.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"

static int make_notes(json_t **out, const struct provenance_note *notes, size_t n_notes,
                      struct error *err) {
    json_t *object = json_object();
    int rc = object ? 0 : error_set(err, ERR_NOMEM, "no memory for a file's provenance");
    for (size_t i = 0; i < n_notes && !rc; i++)
        if (json_object_set_new(object, notes[i].name, json_string(notes[i].text)))
            rc = error_set(err, ERR_INVALID, "'%.64s' of a file's provenance is not UTF-8",
                           notes[i].name);
    if (rc) json_decref(object);
    else *out = object;
    return rc;
}

static int write_file(const char *path, const char *format, const json_t *notes,
                      provenance_members members, const void *ctx, struct error *err) {
    FILE *file = fopen(path, "wb");
    if (!file) return error_set(err, ERR_IO, "%.200s: %s", path, strerror(errno));
    int failed = fprintf(file, "{\"format\": \"%s\",\n\"provenance\": ", format) < 0;
    failed |= json_dumpf(notes, file, JSON_INDENT(1)) != 0;
    failed |= fputs(",\n", file) < 0;
    failed |= members(file, ctx) != 0;
    failed |= fputs("}\n", file) < 0;
    failed |= fclose(file) != 0;
    return failed ? error_set(err, ERR_IO, "%.200s: could not be written", path) : 0;
}

int provenance_save(const char *path, const char *format, const struct provenance_note *notes,
                    size_t n_notes, provenance_members members, const void *ctx,
                    struct error *err) {
    char unfinished[PATH_MAX];
    json_t *object = NULL;
    const int length = snprintf(unfinished, sizeof(unfinished), "%s.unfinished", path);
    if (length < 0 || length >= PATH_MAX)
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", path);
    int rc = make_notes(&object, notes, n_notes, err);
    if (rc) return rc;
    rc = write_file(unfinished, format, object, members, ctx, err);
    json_decref(object);
    if (!rc && rename(unfinished, path) != 0)
        rc = error_set(err, ERR_IO, "%.200s: %s", path, strerror(errno));
    if (rc) unlink(unfinished);
    return rc;
}
