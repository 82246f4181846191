/* The CUDA module's table of kernels, read. */
#ifndef SL_TESTS_KERNELS_LIST_H
#define SL_TESTS_KERNELS_LIST_H

#include "backend/kernel_list.h"

enum { KT_NAME = 96 };

typedef struct kt_listed {
    sl_kernel_entry entry;
    char shape[KT_NAME]; /* its name, with TYPE where that names the type */
    const char *type;    /* "" for one that takes any */
} kt_listed;

/* In the registry's order. */
typedef struct kt_listing {
    kt_listed *rows;
    int32_t count;
} kt_listing;

/* Whether no plan takes it unless somebody says so. */
static inline bool kt_is_asked_for(const sl_kernel *kernel) {
    return kernel->on_request || (kernel->precisions && !(kernel->precisions & SL_PRECISION_BIT(AUTO)));
}

/* An exit status, with a printed message where it is not 0: 77 without the module. */
int kt_listing_read(kt_listing *listing);
void kt_listing_free(kt_listing *listing);

/* Text as a string of JSON. */
void kt_print_json(const char *text);

#endif
