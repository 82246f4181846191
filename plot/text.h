/* Texts of a picture: made fit for XML, measured, shortened; numbers and bytes in words. */
#ifndef SLUICE_PLOT_TEXT_H
#define SLUICE_PLOT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { TEXT_SIZE = 512, NUMBER_SIZE = 40 };

/* Any bytes, NULL too, as UTF-8 that an XML file may hold: line ends and tabs become blanks, what XML or a
 * reader must not meet U+FFFD. A text that is too long for `out` loses its middle. Not escaped. */
void text_clean(const char *bytes, char out[TEXT_SIZE]);
/* Pixels that a text takes in a font of so many pixels, at most: the usual fonts differ, and the widest
 * counts. `text` as text_clean gives it. */
double text_width(const char *text, double size, bool bold);
/* text_clean, and shortened in its middle, by an ellipsis, to at most `width` pixels. */
void text_fit(const char *bytes, double size, bool bold, double width, char out[TEXT_SIZE]);
/* The bytes at the beginning of a clean text that fit into `width`, whole words where there are any; the
 * whole text when it fits. */
size_t text_line(const char *text, double size, bool bold, double width);

/* "12 345", "0.25", "1.5e-9": six digits or whole. */
void number_text(double value, char out[NUMBER_SIZE]);
/* The same with so many digits behind the point; `scientific`: of the mantissa. */
void fixed_text(double value, int digits, bool scientific, char out[NUMBER_SIZE]);
/* "12.0 MiB"; `round`: "12 MiB", and "0" without a unit. */
void bytes_text(double value, bool round, char out[NUMBER_SIZE]);
/* "12 582 912 bytes". */
void exact_bytes_text(double value, char out[NUMBER_SIZE]);

#endif
