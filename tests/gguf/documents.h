/* documents.h - the documents that bytes stand for, as if they were a GGUF file.
 *
 * Thread: any one.  Memory: a file in memory, until the call returns. */
#ifndef TESTS_GGUF_DOCUMENTS_H
#define TESTS_GGUF_DOCUMENTS_H

#include <stdint.h>
#include <jansson.h>

struct error;

/* Reads a document; as model_document_read(). */
int document_of(json_t **out, const void *bytes, size_t size, const char *name, struct error *err);
/* Reads each document.  Ends the process if a refusal has no words, or gives something.  Returns
 * how many there are. */
int read_documents(const void *bytes, size_t size);

#endif
