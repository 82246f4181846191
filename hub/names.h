/* What a model's name says, and what the text of a server may become a path. Inside hub. */
#ifndef SLUICE_HUB_NAMES_H
#define SLUICE_HUB_NAMES_H

#include "hub.h"

typedef enum hub_kind { HUB_KIND_HF, HUB_KIND_OLLAMA, HUB_KIND_URL } hub_kind;

typedef struct hub_name {
    hub_kind kind;
    char repo[256];      /* "OWNER/REPO", "USER/NAME" ("library" for names without USER); URL: the host */
    char revision[104];  /* "main" and "latest" where none is given */
    bool given_revision; /* one is */
    char quant[64];      /* "": none given */
    char file[512];      /* "": none given; URL: the path behind the host */
    char url[HUB_NAME];  /* of URL */
} hub_name;

/* HUB_ERR_NAME says what is wrong with a name. Texts for which hub_is_name is false are wrong as well. */
int hub_name_parse(const char *text, hub_name *name, char message[HUB_MESSAGE]);

/* May this relative path, which a server or a record says, be a file of the cache? Whole segments of plain
 * characters, none hidden and none that leads upwards, of bounded length, and no name of the cache's own. */
bool hub_path_is_safe(const char *path);

/* ---- GGUF files of a repository ---- */

/* "Q4_K_M" of "folder/Model-UD-Q4_K_M-00001-of-00002.gguf" with "UD-" in front; without a word that is a type
 * the file's name without its ending. */
void hub_quant_label(const char *path, char label[128]);
/* Does QUANT mean this file? 2: it is the label, 1: it stands in its path between other words, 0: no. */
int hub_quant_matches(const char *path, const char *quant);
/* The length of the path without "-00001-of-00003.gguf" or ".gguf"; part and parts are 0 of one that is not
 * split. */
size_t hub_gguf_stem(const char *path, int *part, int *parts);
/* A GGUF file that is no model of language by itself: a projector, an adapter, an importance matrix. */
bool hub_gguf_is_other(const char *path);
bool hub_ends_with(const char *text, const char *end);

#endif
