/* The page that a browser gets at `/`: one HTML text with its style and its script in it, joined from
 * server/page/ by cmake/page.cmake. */
#ifndef SLUICE_SERVER_PAGE_H
#define SLUICE_SERVER_PAGE_H

#include <stddef.h>

/* Bytes of PAGE_TEXT. */
typedef struct page_part {
    size_t at, length;
} page_part;

extern const unsigned char PAGE_TEXT[];
extern const size_t PAGE_LENGTH;
extern const page_part PAGE_STYLE, PAGE_SCRIPT; /* what stands inside <style> and <script> */

#endif
