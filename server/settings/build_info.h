/* build_info.h - what this program was built from: version, commit, backends and what their kernels
 * were compiled for, and what it was built without.
 *
 * Thread: any.  Memory: constant. */
#ifndef SERVER_SETTINGS_BUILD_INFO_H
#define SERVER_SETTINGS_BUILD_INFO_H

struct build_backend {
    const char *name;
    const char *const *kernels; /* NULL-terminated: instruction sets or GPU architectures */
};

/* What a build may lack: a library that was not there when it was configured, or was switched
 * off. */
struct build_gap {
    const char *name;    /* of what is missing */
    const char *without; /* what the program cannot do */
    const char *remedy;
};

struct build_info {
    const char *version;
    const char *commit; /* ends in -dirty where files were changed; "unknown" outside git */
    const struct build_backend *backends; /* the last one has no name */
    const struct build_gap *gaps;         /* the last one has no name */
};

extern const struct build_info build_info;
extern const char build_commit[]; /* commit.c.in */

#endif
