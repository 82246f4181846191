/* Texts of a picture. Their widths come from a table, as nothing here draws letters. */
#include "text.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xef\xbf\xbd", ELLIPSIS[] = "\xe2\x80\xa6";

/* Advance widths from U+0020 to U+007E in hundredths of the font's size: of DejaVu Sans or Liberation Sans,
 * whichever is wider. Segoe UI, SF and Roboto are narrower. */
static const unsigned char WIDTHS[95] = {
    32, 41, 46, 84, 64, 96, 78, 28, 40,  40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 56, 102, 69, 69, 73, 78, 67, 62, 78, 76, 30, 50, 67, 56, 87, 75, 79,
    67, 79, 73, 67, 62, 74, 69, 99, 69,  67, 69, 40, 34, 40, 84, 56, 50, 62, 64, 55, 64, 62, 36, 64,
    64, 28, 28, 58, 28, 98, 64, 62, 64,  64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84};

/* Others by range, the first that holds a character. */
static const struct {
    uint32_t last;
    unsigned char width;
} OTHERS[] = {{0x009f, 100}, {0x00ff, 90},  {0x024f, 100}, {0x02ff, 80}, {0x036f, 0},   {0x03ff, 85},
              {0x052f, 110}, {0x10ff, 110}, {0x1dff, 120}, {0x1eff, 90}, {0x1fff, 110}, {0x200a, 50},
              {0x200f, 0},   {0x2012, 70},  {0x206f, 105}, {0x20cf, 85}, {0x20ff, 0},   {0x22ff, 105},
              {0x2e7f, 110}, {0xd7ff, 102}, {0xfdff, 120}, {0xfe0f, 0},  {0xffff, 110}, {0x10ffff, 140}};

/* ---- UTF-8 ----------------------------------------------------------------------------------------------
 */

/* The character at `at`, which is not its end, and its bytes; 0xfffd and 1 for what is no UTF-8. */
static uint32_t decode(const unsigned char *at, size_t *bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t length = at[0] < 0x80   ? 1
                          : at[0] < 0xc2 ? 0
                          : at[0] < 0xe0 ? 2
                          : at[0] < 0xf0 ? 3
                          : at[0] < 0xf5 ? 4
                                         : 0;
    uint32_t value = length < 2 ? at[0] : at[0] & (0x7fu >> length);
    *bytes = 1;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0xfffd;
        }
        value = value << 6 | (at[i] & 0x3fu);
    }
    if (length == 0 || value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return 0xfffd;
    }
    *bytes = length;
    return value;
}

/* Controls, what turns the direction of text, and what is no character. */
static bool is_unwelcome(uint32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) || c == 0x200e ||
           c == 0x200f || c == 0x061c || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
           (c >= 0xfdd0 && c <= 0xfdef) || (c & 0xfffe) == 0xfffe || (c >= 0xe0000 && c < 0xe1000);
}

/* One character of any bytes as it stands in a picture; returns how many bytes were read. */
static size_t clean_one(const unsigned char *at, const char **text, size_t *length) {
    size_t bytes;
    const uint32_t c = decode(at, &bytes);
    *text = (const char *)at;
    *length = bytes;
    if (c == '\n' || c == '\r' || c == '\t') {
        *text = " ";
    } else if (is_unwelcome(c) || c == 0xfffd) {
        *text = REPLACEMENT;
        *length = sizeof REPLACEMENT - 1;
    }
    return bytes;
}

/* Where the last `room` bytes of clean text begin, from the end of `bytes`: back by whole characters. */
static const char *tail_of(const char *bytes, size_t length, size_t room) {
    const char *at = bytes + length;
    for (size_t used = 0; at > bytes;) {
        const char *before = at - 1;
        while (before > bytes && at - before < 4 && ((unsigned char)*before & 0xc0) == 0x80) {
            before--;
        }
        used += sizeof REPLACEMENT - 1 + (size_t)(at - before); /* at most what these become */
        if (used > room) {
            break;
        }
        at = before;
    }
    return at;
}

static size_t append_clean(const char *from, const char *end, char *out, size_t used, size_t room) {
    while (from < end) {
        const char *text;
        size_t length;
        const size_t read = clean_one((const unsigned char *)from, &text, &length);
        if (used + length > room) {
            break;
        }
        memcpy(out + used, text, length);
        used += length;
        from += read;
    }
    out[used] = '\0';
    return used;
}

void text_clean(const char *bytes, char out[TEXT_SIZE]) {
    bytes = bytes ? bytes : "";
    const size_t length = strlen(bytes);
    /* A byte becomes three at most. */
    if (length * 3 < TEXT_SIZE) {
        append_clean(bytes, bytes + length, out, 0, TEXT_SIZE - 1);
        return;
    }
    const char *tail = tail_of(bytes, length, TEXT_SIZE / 2 - 8);
    size_t used = append_clean(bytes, tail, out, 0, TEXT_SIZE / 2 - 4);
    memcpy(out + used, ELLIPSIS, sizeof ELLIPSIS);
    append_clean(tail, bytes + length, out, used + sizeof ELLIPSIS - 1, TEXT_SIZE - 1);
}

/* ---- widths ---------------------------------------------------------------------------------------------
 */

/* Hundredths of the font's size. */
static int width_of(uint32_t c) {
    if (c >= 0x20 && c < 0x7f) {
        return WIDTHS[c - 0x20];
    }
    size_t i = 0;
    while (c > OTHERS[i].last) {
        i++;
    }
    return OTHERS[i].width;
}

static double pixels(int hundredths, double size, bool bold) {
    return hundredths * 0.01 * size * (bold ? 1.15 : 1);
}

double text_width(const char *text, double size, bool bold) {
    int sum = 0;
    for (size_t bytes; *text; text += bytes) {
        sum += width_of(decode((const unsigned char *)text, &bytes));
    }
    return pixels(sum, size, bold);
}

void text_fit(const char *bytes, double size, bool bold, double width, char out[TEXT_SIZE]) {
    char whole[TEXT_SIZE];
    text_clean(bytes, whole);
    memcpy(out, whole, TEXT_SIZE);
    if (text_width(whole, size, bold) <= width) {
        return;
    }
    /* Characters go from both ends by turns, until no more have room. */
    const char *head = whole, *tail = whole + strlen(whole);
    int used = width_of(0x2026);
    for (bool front = true; head < tail; front = !front) {
        size_t step;
        const char *before = tail - 1;
        while (before > head && ((unsigned char)*before & 0xc0) == 0x80) {
            before--;
        }
        used += width_of(decode((const unsigned char *)(front ? head : before), &step));
        if (pixels(used, size, bold) > width) {
            break;
        }
        head += front ? step : 0;
        tail = front ? tail : before;
    }
    const size_t first = (size_t)(head - whole);
    memcpy(out + first, ELLIPSIS, sizeof ELLIPSIS);
    memcpy(out + first + sizeof ELLIPSIS - 1, tail, strlen(tail) + 1);
}

size_t text_line(const char *text, double size, bool bold, double width) {
    int sum = 0;
    size_t at = 0, word = 0;
    for (size_t bytes; text[at]; at += bytes) {
        sum += width_of(decode((const unsigned char *)text + at, &bytes));
        if (pixels(sum, size, bold) > width) {
            return word > 0 ? word : at > 0 ? at : bytes;
        }
        word = text[at] == ' ' ? at + 1 : word;
    }
    return at;
}

/* ---- numbers --------------------------------------------------------------------------------------------
 */

/* "1.50e-09" becomes "1.50e-9". */
static void shorten_exponent(char *text) {
    char *e = strchr(text, 'e');
    if (e) {
        const int exponent = atoi(e + 1);
        snprintf(e + 1, 8, "%d", exponent);
    }
}

/* Blanks between thousands, from 10 000 on. */
static void group(char *text) {
    const size_t sign = text[0] == '-', length = strlen(text);
    const size_t digits = strspn(text + sign, "0123456789");
    if (digits < 5) {
        return;
    }
    size_t more = (digits - 1) / 3, end = sign + digits;
    memmove(text + end + more, text + end, length - end + 1);
    for (; more > 0; more--, end -= 3) {
        memmove(text + end - 3 + more, text + end - 3, 3);
        text[end - 4 + more] = ' ';
    }
}

void fixed_text(double value, int digits, bool scientific, char out[NUMBER_SIZE]) {
    if (scientific || fabs(value) >= 1e18) {
        snprintf(out, NUMBER_SIZE, "%.*e", digits > 16 ? 16 : digits, value);
        shorten_exponent(out);
        return;
    }
    snprintf(out, NUMBER_SIZE, "%.*f", digits > 12 ? 12 : digits, value == 0 ? 0.0 : value);
    group(out);
}

void number_text(double value, char out[NUMBER_SIZE]) {
    if (value == floor(value) && fabs(value) < 1e12) {
        fixed_text(value, 0, false, out);
        return;
    }
    snprintf(out, NUMBER_SIZE, "%.6g", value);
    shorten_exponent(out);
    if (!strchr(out, 'e')) {
        group(out);
    }
}

void bytes_text(double value, bool round, char out[NUMBER_SIZE]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    char number[NUMBER_SIZE];
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) {
        value /= 1024;
    }
    fixed_text(value, unit > 0 && !(round && value == floor(value)), false, number);
    snprintf(out, NUMBER_SIZE, round && value == 0 ? "0" : "%.30s %s", number, units[unit]);
}

void exact_bytes_text(double value, char out[NUMBER_SIZE]) {
    char number[NUMBER_SIZE];
    fixed_text(value, 0, false, number);
    snprintf(out, NUMBER_SIZE, "%.30s bytes", number);
}
