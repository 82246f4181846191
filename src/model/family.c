#include "model/family.h"

static const sl_family FAMILIES[] = {
#define SL_FAMILY(id, ...) {.name = #id, __VA_ARGS__},
#include "model/families.def"
#undef SL_FAMILY
};

const sl_family *sl_family_at(int index) {
    return index >= 0 && index < (int)(sizeof FAMILIES / sizeof *FAMILIES) ? &FAMILIES[index] : NULL;
}

const sl_family *sl_family_find(const char *name) {
    for (int i = 0; sl_family_at(i); i++) {
        if (strcmp(FAMILIES[i].name, name) == 0) {
            return &FAMILIES[i];
        }
    }
    return NULL;
}

const sl_family *sl_family_of_gguf(sl_view architecture) {
    for (int i = 0; sl_family_at(i); i++) {
        if (FAMILIES[i].gguf && sl_view_is(architecture, FAMILIES[i].gguf)) {
            return &FAMILIES[i];
        }
    }
    return NULL;
}

const char *sl_family_gguf_name(const sl_family *family) {
    return family->gguf ? family->gguf : family->gguf_as;
}

const sl_family *sl_family_of_hf(sl_view model_type) {
    for (int i = 0; sl_family_at(i); i++) {
        for (int k = 0; k < SL_FAMILY_ALIASES; k++) {
            if (FAMILIES[i].hf[k] && sl_view_is(model_type, FAMILIES[i].hf[k])) {
                return &FAMILIES[i];
            }
        }
    }
    return NULL;
}
