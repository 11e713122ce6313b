/* name.h - names of models on the hub.
 *
 *   OWNER/NAME                        a repository: safetensors, or one GGUF file
 *   hf:OWNER/NAME[:QUANT][@REVISION]  QUANT: which GGUF file: its format or its own name
 *   https://huggingface.co/OWNER/NAME[/tree/REVISION]
 *
 * The second form's last parts may follow the first form, too.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_HUB_NAME_H
#define SERVER_HUB_NAME_H

struct error;

enum { HUB_PART_MAX = 96, HUB_REVISION_MAX = 128, HUB_QUANT_MAX = 255 };

struct hub_name {
    char repository[2 * HUB_PART_MAX + 2]; /* OWNER/NAME */
    char quant[HUB_QUANT_MAX + 1];         /* empty: none was given */
    char revision[HUB_REVISION_MAX + 1];   /* "main" if none was given */
};

/* Reads a name.  ERR_NOT_FOUND: the text is none, but may be a path.  ERR_INVALID: it begins as one
 * and breaks the rules; the text says which. */
int hub_name_read(struct hub_name *out, const char *text, struct error *err);

#endif
