/* Charts by their parts: ticks, places, texts, numbers; what is refused, and where no file is written. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plot/plot.h"
#include "plot/scale.h"
#include "plot/svg.h"
#include "plot/text.h"

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- ticks ----------------------------------------------------------------------------------------------
 */

/* A label as a person reads it. */
static double read_label(const char *label) {
    char digits[NUMBER_SIZE];
    size_t used = 0;
    for (; *label; label++) {
        if (*label != ' ') {
            digits[used++] = *label;
        }
    }
    digits[used] = '\0';
    char *end;
    const double value = strtod(digits, &end);
    assert_int_equal(*end, '\0');
    return value;
}

static void assert_ticks(const scale_wish *wish, const char *expected) {
    scale s;
    char all[1024] = "";
    scale_make(&s, wish);
    for (int i = 0; i < s.count; i++) {
        strcat(strcat(all, i ? ", " : ""), s.labels[i]);
    }
    assert_string_equal(all, expected);
}

static void test_ticks_are_round(void **state) {
    (void)state;
    assert_ticks(&(scale_wish){.least = 0, .most = 4096, .ticks = 10},
                 "0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000");
    assert_ticks(&(scale_wish){.least = 12, .most = 5200, .from_zero = true, .rounded = true, .ticks = 5},
                 "0, 2000, 4000, 6000");
    assert_ticks(&(scale_wish){.least = 0.1, .most = 0.3, .rounded = true, .ticks = 5},
                 "0.10, 0.15, 0.20, 0.25, 0.30");
    assert_ticks(&(scale_wish){.least = -3, .most = 3, .rounded = true, .ticks = 3}, "-4, -2, 0, 2, 4");
    assert_ticks(&(scale_wish){.least = 1, .most = 2, .from_zero = true, .whole = true, .ticks = 10},
                 "0, 1, 2");
    assert_ticks(&(scale_wish){.least = 0, .most = 60000, .ticks = 4}, "0, 20 000, 40 000, 60 000");
    assert_ticks(&(scale_wish){.least = 0, .most = 4e8, .ticks = 4}, "0, 1e8, 2e8, 3e8, 4e8");
    assert_ticks(&(scale_wish){.least = 1, .most = 1000, .logarithmic = true, .ticks = 10},
                 "1, 2, 5, 10, 20, 50, 100, 200, 500, 1000");
    assert_ticks(&(scale_wish){.least = 3, .most = 700, .logarithmic = true, .rounded = true, .ticks = 3},
                 "1, 10, 100, 1000");
    assert_ticks(&(scale_wish){.least = 1, .most = 32, .logarithmic = true, .binary = true, .ticks = 10},
                 "1, 2, 4, 8, 16, 32");
    assert_ticks(&(scale_wish){.least = 64, .most = 65536, .logarithmic = true, .binary = true, .ticks = 6},
                 "64, 256, 1024, 4096, 16 384, 65 536");
    assert_ticks(&(scale_wish){.least = 100, .most = 110, .logarithmic = true, .ticks = 6},
                 "100, 102, 104, 106, 108, 110");
    assert_ticks(&(scale_wish){.least = 0, .most = 33319056, .binary = true, .ticks = 8},
                 "0, 4 MiB, 8 MiB, 12 MiB, 16 MiB, 20 MiB, 24 MiB, 28 MiB");
}

/* Is a step 1, 2, 2.5 or 5 times a power of ten? By its decimal digits, not as the code makes it. */
static bool is_round(double step) {
    char digits[40];
    snprintf(digits, sizeof digits, "%.9e", step);
    const char *const mantissas[] = {"1.000000000e", "2.000000000e", "2.500000000e", "5.000000000e"};
    for (int i = 0; i < 4; i++) {
        if (strncmp(digits, mantissas[i], strlen(mantissas[i])) == 0) {
            return true;
        }
    }
    return false;
}

static void check_scale(const scale_wish *wish) {
    scale s;
    scale_make(&s, wish);
    s.begin = 100;
    s.end = 500;
    if (s.count < 2 || s.count > TICKS) {
        fail_msg("%d ticks from %.17g to %.17g, logarithmic %d, rounded %d, %d wanted", s.count, wish->least,
                 wish->most, wish->logarithmic, wish->rounded, wish->ticks);
    }
    assert_true(s.low <= wish->least && s.high >= wish->most);
    assert_true(isfinite(s.low) && isfinite(s.high) && s.low < s.high);
    for (int i = 0; i < s.count; i++) {
        const double read = read_label(s.labels[i]), at = scale_at(&s, s.ticks[i]);
        assert_true(at > 100 - 1e-6 && at < 500 + 1e-6);
        if (fabs(read - s.ticks[i]) > 1e-9 * fmax(fabs(s.ticks[i]), (s.high - s.low) * 1e-3)) {
            fail_msg("%.17g is labelled %s on an axis from %g to %g", s.ticks[i], s.labels[i], s.low, s.high);
        }
        assert_true(i == 0 || s.ticks[i] > s.ticks[i - 1]);
        assert_true(i == 0 || strcmp(s.labels[i], s.labels[i - 1]) != 0);
    }
    if (!wish->logarithmic && !is_round(s.ticks[1] - s.ticks[0]) &&
        fabs(s.ticks[0]) < 1e3 * (s.ticks[1] - s.ticks[0])) {
        fail_msg("a step of %.17g", s.ticks[1] - s.ticks[0]);
    }
    if (wish->rounded) {
        assert_true(scale_at(&s, wish->least) >= 100 - 1e-6 && scale_at(&s, wish->most) <= 500 + 1e-6);
    }
}

static uint64_t random_state = 7;

static double random_share(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static void test_any_range(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const double size = pow(10, random_share() * 600 - 300), share = pow(10, -8 * random_share());
        const double first = size * (2 * random_share() - 1);
        scale_wish wish = {.least = first,
                           .most = first + size * share * (i % 7 == 0 ? 0 : 1),
                           .from_zero = i & 1,
                           .rounded = i & 2,
                           .ticks = 2 + i % 10};
        check_scale(&wish);
        wish.least = pow(10, random_share() * 600 - 300);
        wish.most = fmin(wish.least * pow(10, random_share() * random_share() * 600), 1e300);
        wish.logarithmic = true;
        wish.from_zero = false;
        check_scale(&wish);
    }
}

static void test_places(void **state) {
    (void)state;
    scale s;
    scale_make(&s, &(scale_wish){.least = 0, .most = 100, .ticks = 5});
    s.begin = 400; /* downwards, as a vertical axis */
    s.end = 200;
    assert_float_equal(scale_at(&s, 0), 400, 1e-9);
    assert_float_equal(scale_at(&s, 25), 350, 1e-9);
    assert_float_equal(scale_at(&s, 100), 200, 1e-9);
    scale_make(&s, &(scale_wish){.least = 1, .most = 1e4, .logarithmic = true, .ticks = 5});
    s.begin = 0;
    s.end = 400;
    assert_float_equal(scale_at(&s, 10), 100, 1e-9);
    assert_float_equal(scale_at(&s, sqrt(10)), 50, 1e-9);
    scale_make(&s, &(scale_wish){.least = -1e300, .most = 1e300, .ticks = 5});
    s.begin = 0;
    s.end = 400;
    assert_float_equal(scale_at(&s, 0), 200, 1e-9);
}

/* ---- texts ----------------------------------------------------------------------------------------------
 */

static void assert_clean(const char *bytes, const char *expected) {
    char text[TEXT_SIZE];
    text_clean(bytes, text);
    assert_string_equal(text, expected);
}

#define BAD "\xef\xbf\xbd"

/* The replaced sequences are those of the Unicode Standard's chapter 3.9 and RFC 3629. */
static void test_clean(void **state) {
    (void)state;
    assert_clean(NULL, "");
    assert_clean("a<b & \"c\"", "a<b & \"c\"");
    assert_clean("a\nb\tc\rd", "a b c d");
    assert_clean("a\x01\x1b[31m\x7f", "a" BAD BAD "[31m" BAD);
    assert_clean("gr\xc3\xb6\xc3\x9f"
                 "e \xe6\xbc\xa2 \xf0\x9f\x98\x80",
                 "gr\xc3\xb6\xc3\x9f"
                 "e \xe6\xbc\xa2 \xf0\x9f\x98\x80");
    assert_clean("\xc3", BAD);                                   /* cut */
    assert_clean("\xe6\xbc", BAD BAD);                           /* cut */
    assert_clean("\x80 \xff \xc0\xaf", BAD " " BAD " " BAD BAD); /* no first byte; longer than needed */
    assert_clean("\xe0\x80\xaf \xf0\x80\x80\xaf", BAD BAD BAD " " BAD BAD BAD BAD); /* longer than needed */
    assert_clean("\xed\xa0\x80", BAD BAD BAD);                                      /* half of a pair */
    assert_clean("\xf4\x90\x80\x80", BAD BAD BAD BAD);                              /* beyond U+10FFFF */
    assert_clean("\xef\xbf\xbf\xef\xbf\xbe", BAD BAD);                              /* no characters in XML */
    assert_clean("a\xe2\x80\xae"
                 "fdp.exe",
                 "a" BAD "fdp.exe"); /* would turn what follows around */
    assert_clean("\xc2\x85", BAD);   /* a control above ASCII */
}

static bool is_utf8_at(const unsigned char *at, size_t *length) {
    *length = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    for (size_t i = 1; i < *length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return false;
        }
    }
    return at[0] < 0x80 || at[0] >= 0xc2;
}

static void test_any_bytes(void **state) {
    (void)state;
    static char bytes[20001];
    char text[TEXT_SIZE];
    for (int round = 0; round < 2000; round++) {
        const size_t length = (size_t)(random_share() * (round % 50 == 0 ? 20000 : 300));
        for (size_t i = 0; i < length; i++) {
            const double kind = random_share();
            bytes[i] = (char)(int)(kind < 0.5 ? -128 + 64 * random_share() : 1 + 126 * random_share());
        }
        bytes[length] = '\0';
        const double width = 20 + 300 * random_share();
        text_fit(bytes, 13, round & 1, width, text);
        assert_true(strlen(text) < TEXT_SIZE);
        assert_true(text_width(text, 13, round & 1) <= width + 1e-9);
        size_t step;
        for (const char *at = text; *at; at += step) {
            assert_true(is_utf8_at((const unsigned char *)at, &step));
            assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
        }
    }
}

/* Helvetica's advance widths (Adobe's published metrics) from U+0020 on, in thousandths of the font's size.
 */
static const int HELVETICA[95] = {
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333,  278, 278, 556, 556, 556,
    556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667,
    611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667,  611, 722, 667, 944, 667,
    667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278,  556, 556, 222, 222, 500,
    222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500,  500, 334, 260, 334, 584};

static void test_widths(void **state) {
    (void)state;
    for (int c = 0x20; c < 0x7f; c++) {
        const char text[2] = {(char)c, '\0'};
        const double width = text_width(text, 1000, false);
        if (width < HELVETICA[c - 0x20] || width > 2.2 * HELVETICA[c - 0x20]) {
            fail_msg("%c is %g wide, and in Helvetica %d", c, width, HELVETICA[c - 0x20]);
        }
    }
    assert_float_equal(text_width("\xe6\xbc\xa2\xe5\xad\x97", 10, false), 20, 3); /* two full squares */
    assert_float_equal(text_width("e\xcc\x81", 10, false), text_width("e", 10, false), 1e-9); /* an accent */
}

static void test_fit(void **state) {
    (void)state;
    char text[TEXT_SIZE], long_name[10001];
    text_fit("mini.gguf", 13, false, 200, text);
    assert_string_equal(text, "mini.gguf");
    text_fit("a-model-with-a-rather-long-name-Q4_K_M.gguf", 13, false, 150, text);
    assert_non_null(strstr(text, "\xe2\x80\xa6"));
    assert_memory_equal(text, "a-model", 7);
    assert_string_equal(text + strlen(text) - 5, ".gguf");
    assert_true(text_width(text, 13, false) > 120);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[10000] = '\0';
    memcpy(long_name + 9995, "final", 5);
    text_fit(long_name, 13, false, 150, text);
    assert_string_equal(text + strlen(text) - 5, "final");
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } numbers[] = {{0, "0"},
                   {-0.0, "0"},
                   {5, "5"},
                   {1234, "1234"},
                   {12345, "12 345"},
                   {-1234567, "-1 234 567"},
                   {0.25, "0.25"},
                   {1234567.25, "1.23457e6"},
                   {12345.5, "12 345.5"},
                   {1e-9, "1e-9"},
                   {2.5e300, "2.5e300"}};
    static const struct {
        double value;
        const char *human, *exact;
    } bytes[] = {{0, "0 B", "0 bytes"},
                 {144, "144 B", "144 bytes"},
                 {12582912, "12.0 MiB", "12 582 912 bytes"},
                 {205824, "201.0 KiB", "205 824 bytes"},
                 {24051816858.0, "22.4 GiB", "24 051 816 858 bytes"}};
    char text[NUMBER_SIZE];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        number_text(numbers[i].value, text);
        assert_string_equal(text, numbers[i].text);
    }
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        bytes_text(bytes[i].value, false, text);
        assert_string_equal(text, bytes[i].human);
        exact_bytes_text(bytes[i].value, text);
        assert_string_equal(text, bytes[i].exact);
    }
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

static char folder[] = "/tmp/test_plot.XXXXXX";
static char path[512], message[PLOT_MESSAGE];

static const char *in_folder(const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void) {
    char command[256];
    int count = -1;
    snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    assert_int_equal(fscanf(output, "%d", &count), 1);
    pclose(output);
    return count;
}

static plot_point line_points[2] = {{1, 10, 9, 11}, {2, 20, 20, 20}};
static plot_series line_series[1] = {{"a line", line_points, 2, false}};
static plot_lines line_chart = {"A title", NULL, {"x", false, false}, {"y", false, true}, line_series, 1};

static void assert_refused(const char *target, const char *reason) {
    message[0] = '\0';
    assert_int_equal(plot_write_lines(target, &line_chart, message), -1);
    if (!strstr(message, reason) || strncmp(message, target, strlen(target)) != 0) {
        fail_msg("\"%s\" does not say: %s", message, reason);
    }
}

static void write_text(const char *target, const char *text) {
    FILE *file = fopen(target, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_targets(void **state) {
    (void)state;
    char target[512];
    struct stat status;
    assert_refused(in_folder("."), "is a folder");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_refused(path, "is a device or a pipe");
    unlink(path);
    assert_refused("/dev/null", "is a device or a pipe");
    strcpy(target, in_folder("target.svg"));
    write_text(target, "<svg old");
    assert_int_equal(symlink(target, in_folder("link.svg")), 0);
    assert_refused(path, "is a link");
    unlink(path);
    assert_int_equal(symlink("nowhere", in_folder("dangling.svg")), 0);
    assert_refused(path, "is a link");
    unlink(path);
    write_text(in_folder("model.gguf"), "GGUF and much more");
    assert_refused(path, "is no SVG");
    unlink(path);
    assert_refused(in_folder("missing/x.svg"), "cannot create: No such file");
    assert_refused("", "a file without a name");
    /* One file, the old one; then the new one, with the mask's permissions. */
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(plot_check(target, message), 0);
    assert_int_equal(plot_check(in_folder("new.svg"), message), 0);
    assert_int_equal(files_in_folder(), 1);
    const mode_t mask = umask(027);
    assert_int_equal(plot_write_lines(target, &line_chart, message), 0);
    umask(mask);
    assert_int_equal(stat(target, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    assert_true(status.st_size > 1000);
    write_text(target, "");
    assert_int_equal(plot_write_lines(target, &line_chart, message), 0);
    assert_int_equal(files_in_folder(), 1);
    unlink(target);
}

static void test_values_refused(void **state) {
    (void)state;
    static const double wrong[] = {NAN, INFINITY, -INFINITY, 1e301};
    const char *target = in_folder("refused.svg");
    for (int i = 0; i < 4; i++) {
        for (int member = 0; member < 4; member++) {
            const plot_point kept = line_points[1];
            ((double *)&line_points[1])[member] = wrong[i];
            assert_refused(target,
                           i < 3 ? "a line: point 2 is no finite number" : "a line: point 2 is beyond 1e300");
            line_points[1] = kept;
        }
    }
    line_points[1].x = 0;
    assert_refused(target, "lies to the left of the one before");
    line_points[1].x = 2;
    line_points[1].low = 21;
    assert_refused(target, "does not lie in its own spread");
    line_points[1].low = 20;
    line_chart.y.logarithmic = true;
    line_points[0].low = 0;
    assert_refused(target, "logarithmic axis");
    line_points[0].low = 9;
    line_chart.y.logarithmic = false;
    line_series[0].count = 0;
    assert_refused(target, "without a point");
    line_series[0].count = 2;
    line_series[0].is_limit = true;
    assert_refused(target, "without a point"); /* a limit of nothing */
    line_series[0].is_limit = false;
    const plot_bars empty = {.title = "bars"};
    assert_int_equal(plot_write_bars(target, &empty, message), -1);
    const plot_part part = {"part", NULL, -1};
    const plot_bar bar = {.name = "bar", .parts = &part, .count = 1};
    const plot_bars negative = {.title = "bars", .bars = &bar, .bar_count = 1};
    assert_int_equal(plot_write_bars(target, &negative, message), -1);
    assert_non_null(strstr(message, "bar: part 1 is not from 0 to 1e300"));
    assert_int_equal(files_in_folder(), 0);
}

/* A locale whose decimal point is a comma, where the machine has one. */
static void test_locale(void **state) {
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    bool set = false;
    for (int i = 0; i < 4 && !set; i++) {
        set = setlocale(LC_ALL, names[i]);
    }
    if (!set) {
        printf("no locale with a decimal comma is installed\n");
        skip();
    }
    svg s;
    assert_int_equal(svg_begin(&s, message), 0);
    svg_add(&s, "%.2f", 1.5);
    assert_string_equal(s.data, "1.50");
    svg_end(&s);
    setlocale(LC_ALL, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ticks_are_round),
        cmocka_unit_test(test_any_range),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_targets),
        cmocka_unit_test(test_values_refused),
        cmocka_unit_test(test_locale),
    };
    if (!mkdtemp(folder)) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
