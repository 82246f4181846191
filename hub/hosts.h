/* The hosts that are asked what a name stands for. Inside hub. */
#ifndef SLUICE_HUB_HOSTS_H
#define SLUICE_HUB_HOSTS_H

#include "names.h"

#include <jansson.h>

/* The line of an error; returns `code`. */
int hub_fail(char message[HUB_MESSAGE], int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fill in a zeroed listing; what they leave behind on failure, hub_listing_release frees. */
int hub_list_hf(const hub_options *options, const hub_name *name, hub_listing *listing,
                char message[HUB_MESSAGE]);
int hub_list_ollama(const hub_options *options, const hub_name *name, hub_listing *listing,
                    char message[HUB_MESSAGE]);
int hub_list_url(const hub_options *options, const hub_name *name, hub_listing *listing,
                 char message[HUB_MESSAGE]);

/* One more part: FOLDER/FILE of the cache, from there. `sha256` NULL or "": not known. */
typedef struct hub_remote {
    const char *folder, *file, *url, *sha256;
    uint64_t size;
} hub_remote;
int hub_listing_add(hub_listing *listing, const hub_remote *remote, char message[HUB_MESSAGE]);

/* A small answer that must be a JSON object. */
int hub_fetch_object(const hub_transfer *transfer, const char *url, const char *accept, json_t **object,
                     char message[HUB_MESSAGE]);
/* As hub_options have it for that kind of name: without the token unless it is Hugging Face's. */
hub_transfer hub_transfer_of(const hub_options *options, hub_kind kind);
/* "4.9 GB"; returns `text`. */
char *hub_size_text(uint64_t bytes, char text[16]);
bool hub_is_hex(const char *text, size_t length);

#endif
