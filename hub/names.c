#include "names.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SEGMENT_MOST = 200, PATH_MOST = 480 };

static int wrong(char message[HUB_MESSAGE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static int wrong(char message[HUB_MESSAGE], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, HUB_MESSAGE, format, arguments);
    va_end(arguments);
    return HUB_ERR_NAME;
}

bool hub_ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcasecmp(text + length - tail, end) == 0;
}

/* ---- words and paths -------------------------------------------------------------------------------------
 */

/* Letters, digits and ". _ -", beginning with a letter or a digit, without "..". */
static bool is_word(const char *text, size_t length, size_t most) {
    if (length == 0 || length > most || !isalnum((unsigned char)text[0])) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 128 || (!isalnum(c) && !strchr("._-", c)) ||
            (c == '.' && i + 1 < length && text[i + 1] == '.')) {
            return false;
        }
    }
    return true;
}

/* One name of a path: bytes of UTF-8 above 127 are let through, control characters and separators are not. */
static bool is_segment(const char *text, size_t length) {
    if (length == 0 || length > SEGMENT_MOST || text[0] == '.' || text[0] == '-') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool c1 =
            c == 0xc2 && i + 1 < length && (unsigned char)text[i + 1] < 0xa0; /* U+0080 to U+009F */
        if (c < 32 || c == 127 || c1 || strchr("\\:*?\"<>|", c)) {
            return false;
        }
    }
    return true;
}

bool hub_path_is_safe(const char *path) {
    static const char *const OWN[] = {".part", ".part.json", ".sluice.json", ".sluice.lock"};
    if (strlen(path) > PATH_MOST) {
        return false;
    }
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
        if (hub_ends_with(path, OWN[i])) {
            return false;
        }
    }
    for (const char *at = path;; at++) {
        const size_t length = strcspn(at, "/");
        if (!is_segment(at, length)) {
            return false;
        }
        at += length;
        if (!*at) {
            return true;
        }
    }
}

/* ---- names -----------------------------------------------------------------------------------------------
 */

static const char *behind(const char *text, const char *beginning) {
    const size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : NULL;
}

static const char *behind_scheme(const char *text) {
    const char *at = behind(text, "https://");
    return at ? at : behind(text, "http://");
}

bool hub_is_name(const char *text) {
    const char *url = behind_scheme(text);
    if (strlen(text) >= HUB_NAME || strpbrk(text, " \t\r\n")) {
        return false;
    }
    return behind(text, "hf:") || behind(text, "ollama:") || (url && *url);
}

/* "OWNER/REPO"; *rest: what follows. */
static bool take_repo(const char *text, hub_name *name, const char **rest) {
    const size_t owner = strcspn(text, "/@:");
    if (text[owner] != '/' || !is_word(text, owner, 96)) {
        return false;
    }
    const size_t repo = strcspn(text + owner + 1, "/@:");
    if (!is_word(text + owner + 1, repo, 128)) {
        return false;
    }
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)(owner + 1 + repo), text);
    *rest = text + owner + 1 + repo;
    return true;
}

static bool take_word(char *to, size_t size, const char *text, size_t length) {
    snprintf(to, size, "%.*s", (int)length, text);
    return is_word(text, length, size - 1);
}

static int take_file(hub_name *name, const char *text, const char *path, char message[HUB_MESSAGE]) {
    if (!hub_path_is_safe(path) || strlen(path) >= sizeof name->file) {
        return wrong(message, "%s: \"%s\" is no plain path of a file", text, path);
    }
    if (!hub_ends_with(path, ".gguf")) {
        return wrong(message, "%s: a file must end in .gguf; hf:%s is the whole repository", text,
                     name->repo);
    }
    snprintf(name->file, sizeof name->file, "%s", path);
    return HUB_OK;
}

static int parse_hf(const char *text, const char *at, hub_name *name, char message[HUB_MESSAGE]) {
    name->kind = HUB_KIND_HF;
    snprintf(name->revision, sizeof name->revision, "main");
    if (!take_repo(at, name, &at)) {
        return wrong(message, "%s: must be hf:OWNER/REPO, with :QUANT or /FILE behind it", text);
    }
    if (*at == '@') {
        const size_t length = strcspn(++at, "/:");
        if (!take_word(name->revision, sizeof name->revision, at, length)) {
            return wrong(message, "%s: behind @ must be a revision: a branch, a tag or a commit", text);
        }
        name->given_revision = true;
        at += length;
    }
    if (*at == ':' && !take_word(name->quant, sizeof name->quant, at + 1, strlen(at + 1))) {
        return wrong(message, "%s: behind : must be a type, as in hf:%s:Q4_K_M", text, name->repo);
    }
    return *at == '/' ? take_file(name, text, at + 1, message) : HUB_OK;
}

static int parse_ollama(const char *text, const char *at, hub_name *name, char message[HUB_MESSAGE]) {
    name->kind = HUB_KIND_OLLAMA;
    const size_t tag = strcspn(at, ":");
    char bare[256];
    snprintf(bare, sizeof bare, "%s%.*s", memchr(at, '/', tag) ? "" : "library/",
             (int)(tag < 200 ? tag : 200), at);
    const char *rest = "x";
    if (tag > 200 || !take_repo(bare, name, &rest) || *rest) {
        return wrong(message, "%s: must be ollama:NAME[:TAG] or ollama:USER/NAME[:TAG]", text);
    }
    snprintf(name->revision, sizeof name->revision, "latest");
    if (at[tag] == ':') {
        name->given_revision = true;
        if (!take_word(name->revision, sizeof name->revision, at + tag + 1, strlen(at + tag + 1))) {
            return wrong(message, "%s: behind the last : must be a tag, as in ollama:llama3:8b", text);
        }
    }
    return HUB_OK;
}

/* A page or file of Hugging Face, as it is copied from a browser: OWNER/REPO[/KIND/REVISION[/FILE]]. */
static int parse_hf_page(const char *text, const char *at, hub_name *name, char message[HUB_MESSAGE]) {
    char words[HUB_NAME];
    const size_t length = strcspn(at, "?#");
    snprintf(words, sizeof words, "%.*s", (int)length, at);
    const char *rest;
    name->kind = HUB_KIND_HF;
    snprintf(name->revision, sizeof name->revision, "main");
    if (!take_repo(words, name, &rest)) {
        return wrong(message, "%s: names no repository; hf:OWNER/REPO does", text);
    }
    static const char *const KINDS[] = {"/resolve/", "/blob/", "/tree/"};
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        const char *revision = behind(rest, KINDS[i]);
        const size_t word = revision ? strcspn(revision, "/") : 0;
        if (revision && take_word(name->revision, sizeof name->revision, revision, word)) {
            name->given_revision = strcmp(name->revision, "main") != 0;
            const bool file = revision[word] && revision[word + 1] && i < 2;
            return file ? take_file(name, text, revision + word + 1, message) : HUB_OK;
        }
    }
    return *rest && strcmp(rest, "/") != 0
               ? wrong(message, "%s: names no repository and no file of one; hf:OWNER/REPO does", text)
               : HUB_OK;
}

static int parse_url(const char *text, const char *at, hub_name *name, char message[HUB_MESSAGE]) {
    name->kind = HUB_KIND_URL;
    const size_t host = strcspn(at, "/?#");
    const char *path = at + host;
    if (strcspn(at, "@") < host || host == 0 || host > 200) {
        return wrong(message, "a URL must be https://HOST/PATH.gguf, without a user and a password");
    }
    for (size_t i = 0; i < host; i++) {
        if (!isalnum((unsigned char)at[i]) && !strchr(".-:", at[i])) {
            return wrong(message, "%.200s: \"%.*s\" is no host", text, (int)host, at);
        }
    }
    if (strpbrk(path, "?#")) {
        return wrong(message, "%.*s...: a URL may have no ? and no #: it must be the file's own",
                     (int)strcspn(text, "?#"), text);
    }
    if (*path != '/' || !hub_path_is_safe(path + 1) || strpbrk(path, " ") || !hub_ends_with(path, ".gguf")) {
        return wrong(message, "%s: must be a GGUF file's URL, https://HOST/PATH.gguf", text);
    }
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)host, at);
    snprintf(name->file, sizeof name->file, "%s", path + 1);
    snprintf(name->url, sizeof name->url, "%s", text);
    for (char *c = name->repo; *c; c++) {
        *c = *c == ':' ? '_' : *c; /* of a port */
    }
    return name->repo[0] == '.' || strstr(name->repo, "..")
               ? wrong(message, "%s: \"%s\" is no host", text, name->repo)
               : HUB_OK;
}

int hub_name_parse(const char *text, hub_name *name, char message[HUB_MESSAGE]) {
    memset(name, 0, sizeof *name);
    if (strlen(text) >= HUB_NAME - 128 || strlen(text) > PATH_MOST) {
        return wrong(message, "%.60s...: a name of more than %d bytes", text, PATH_MOST);
    }
    for (const char *at = text; *at; at++) {
        if ((unsigned char)*at < 33 || *at == 127) {
            return wrong(message, "a name may hold no blanks and no control characters");
        }
    }
    const char *hf = behind(text, "hf:"), *ollama = behind(text, "ollama:"), *url = behind_scheme(text);
    const char *page = behind(text, "https://huggingface.co/");
    page = page ? page : behind(text, "https://hf.co/");
    return hf       ? parse_hf(text, hf, name, message)
           : ollama ? parse_ollama(text, ollama, name, message)
           : page   ? parse_hf_page(text, page, name, message)
           : url    ? parse_url(text, url, name, message)
                 : wrong(message, "%.200s: no model's name; hf:OWNER/REPO, ollama:NAME and https://... are",
                         text);
}

/* ---- GGUF files of a repository --------------------------------------------------------------------------
 */

/* Words that name a weight type, in any case: Q4_K_M, IQ4_XS, TQ1_0, BF16, F16, MXFP4_MOE, ... */
static bool is_type(const char *word, size_t length) {
    static const char *const WHOLE[] = {"BF16", "F16",   "FP16",  "F32",      "FP32",
                                        "FP8",  "NVFP4", "MXFP4", "MXFP4_MOE"};
    for (size_t i = 0; i < sizeof WHOLE / sizeof *WHOLE; i++) {
        if (strlen(WHOLE[i]) == length && strncasecmp(WHOLE[i], word, length) == 0) {
            return true;
        }
    }
    const char *at = word, *end = word + length;
    at += length > 2 && strchr("IiTt", *at);
    if (end - at < 2 || (*at != 'q' && *at != 'Q') || !isdigit((unsigned char)at[1])) {
        return false;
    }
    for (at += 2; at < end; at++) {
        if (!isalnum((unsigned char)*at) && *at != '_') {
            return false;
        }
    }
    return true;
}

size_t hub_gguf_stem(const char *path, int *part, int *parts) {
    size_t length = strlen(path);
    length -= hub_ends_with(path, ".gguf") ? 5 : 0;
    *part = *parts = 0;
    static const char PATTERN[] = "-00000-of-00000";
    const size_t tail = sizeof PATTERN - 1;
    if (length <= tail) {
        return length;
    }
    for (size_t i = 0; i < tail; i++) {
        const unsigned char c = (unsigned char)path[length - tail + i];
        if (PATTERN[i] == '0' ? !isdigit(c) : c != PATTERN[i]) {
            return length;
        }
    }
    *part = atoi(path + length - tail + 1);
    *parts = atoi(path + length - 5);
    return length - tail;
}

bool hub_gguf_is_other(const char *path) {
    static const char *const OTHERS[] = {"mmproj", "imatrix", "lora", "adapter", "vocab", "control-vector"};
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        const size_t length = strlen(OTHERS[i]);
        for (const char *at = name; strlen(at) >= length; at++) {
            if (strncasecmp(at, OTHERS[i], length) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* The last word of text[0, length) that is a type, "UD-" of Unsloth's in front of it included. */
static bool last_type(const char *text, size_t length, char label[128]) {
    size_t end = length;
    while (end > 0) {
        size_t begin = end;
        while (begin > 0 && !strchr("-./", text[begin - 1])) {
            begin--;
        }
        if (is_type(text + begin, end - begin)) {
            const bool ud = begin >= 3 && strncasecmp(text + begin - 3, "ud-", 3) == 0 &&
                            (begin == 3 || strchr("-./", text[begin - 4]));
            snprintf(label, 128, "%.*s", (int)(end - begin + (ud ? 3 : 0)), text + begin - (ud ? 3 : 0));
            return true;
        }
        end = begin > 0 ? begin - 1 : 0;
    }
    return false;
}

void hub_quant_label(const char *path, char label[128]) {
    int part, parts;
    const size_t length = hub_gguf_stem(path, &part, &parts);
    const char *slash = strrchr(path, '/');
    const size_t folder = slash && (size_t)(slash - path) < length ? (size_t)(slash - path) + 1 : 0;
    if (!last_type(path + folder, length - folder, label) &&
        !last_type(path, folder ? folder - 1 : 0, label)) {
        snprintf(label, 128, "%.*s", (int)(length - folder), path + folder);
        return;
    }
    for (char *c = label; *c; c++) {
        *c = (char)toupper((unsigned char)*c);
    }
}

int hub_quant_matches(const char *path, const char *quant) {
    char label[128];
    int part, parts;
    hub_quant_label(path, label);
    if (strcasecmp(label, quant) == 0) {
        return 2;
    }
    const size_t length = hub_gguf_stem(path, &part, &parts), word = strlen(quant);
    for (size_t i = 0; i + word <= length; i++) {
        const bool begins = i == 0 || strchr("-./", path[i - 1]);
        const bool ends = i + word == length || strchr("-./", path[i + word]);
        if (begins && ends && strncasecmp(path + i, quant, word) == 0) {
            return 1;
        }
    }
    return 0;
}
