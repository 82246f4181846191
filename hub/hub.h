/* Models by name: hf:OWNER/REPO[@REVISION][:QUANT], hf:OWNER/REPO[@REVISION]/FILE, ollama:[USER/]NAME[:TAG],
 * https://HOST/PATH.gguf; and the user's folder in which they are kept (cache.h). Errors as in download.h. */
#ifndef SLUICE_HUB_H
#define SLUICE_HUB_H

#include "download.h"

enum { HUB_NAME = 1024, HUB_PATH = 4096 };

typedef struct hub_options {
    const char *cache;     /* the folder; NULL: the user's, ~/.cache/sluice/models */
    const char *mirror;    /* "http://127.0.0.1:9000": asked instead of the usual host of each kind of name;
                              NULL: none */
    bool offline;          /* only what is in the cache */
    hub_transfer transfer; /* its token is sent for names with hf: alone */
} hub_options;

/* Is this text a model's name, and no path? */
bool hub_is_name(const char *text);

/* Where the model of that name lies, fetched first when it is not there: *path, a GGUF file (the first part
 * of a split one) or a folder; the caller frees it. A text that is no name is returned as it is. */
int hub_resolve(const hub_options *options, const char *name, char **path, char message[HUB_MESSAGE]);

/* ---- what a name stands for at its host ---- */

typedef struct hub_part {
    char *path; /* inside the cache folder */
    char *url;
    uint64_t size;   /* 0: not known */
    char sha256[65]; /* "": not known */
} hub_part;

typedef struct hub_listing {
    char name[HUB_NAME];   /* with the choices made: "hf:OWNER/REPO:Q4_K_M" */
    char source[HUB_NAME]; /* for people: where it comes from */
    char repo[256];        /* "OWNER/REPO", "USER/NAME", a host */
    char revision[104];    /* what was asked for: a branch, a tag */
    char version[72];      /* that it stands for: a commit, a digest; "": not known */
    char label[128];       /* "Q4_K_M"; "" of a folder */
    char file[HUB_NAME];   /* the first file's path at its host; "" of a folder */
    char model[HUB_PATH];  /* inside the cache folder: the file or folder that is opened */
    char left_out[256];    /* what else it has and sluice does not read; "": nothing */
    bool is_folder;        /* of Hugging Face's kind */
    bool is_default;       /* what a name without QUANT stands for */
    bool gated;            /* the host says that access must be asked for */
    hub_part *parts;       /* [count] */
    size_t count;
    uint64_t bytes; /* of all parts */
} hub_listing;

/* Asks the host. Release after success alone. */
int hub_look_up(const hub_options *options, const char *name, hub_listing *listing,
                char message[HUB_MESSAGE]);
void hub_listing_release(hub_listing *listing);

/* Fetches what is not there yet; *path as hub_resolve. Another process that fetches the same model is waited
 * for. */
int hub_pull(const hub_options *options, const hub_listing *listing, char **path, char message[HUB_MESSAGE]);

/* A stand-in for a model that is not there: files of the full size that hold the headers alone, of which the
 * beginnings are fetched. *path is what to open, *folder what hub_preview_remove takes away; the caller frees
 * both. `fetched`: bytes that it took. */
int hub_preview(const hub_options *options, const hub_listing *listing, char **path, char **folder,
                uint64_t *fetched, char message[HUB_MESSAGE]);
void hub_preview_remove(const char *folder);

#endif
