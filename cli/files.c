/* sluice quantize, sluice synth: files that are written. */
#include "cli.h"

#include <sys/stat.h>

static int report_file(int result, const char *path, double seconds, const sluice_error *error) {
    struct stat status;
    if (result) {
        return fail_with(error);
    }
    if (stat(path, &status) == 0) {
        fprintf(stderr, "%s: %lld bytes in %.2f s, %.2f GB/s\n", path, (long long)status.st_size, seconds,
                (double)status.st_size * 1e-9 / (seconds > 1e-6 ? seconds : 1e-6));
    }
    return DONE;
}

int quantize_command(const settings *settings) {
    sluice_error error;
    progress_bar bar = {.label = "writing"};
    const char *const *a = settings->arguments;
    const double begin = seconds_now();
    catch_interrupt();
    const int result = sluice_quantize(a[0], a[1], a[2], progress_step, &bar, &error);
    progress_end(&bar);
    return report_file(result, a[1], seconds_now() - begin, &error);
}

int synth_command(const settings *s) {
    sluice_error error;
    progress_bar bar = {.label = "writing"};
    const sluice_synth_options options = {
        .size = sizeof options,
        .preset = s->arguments[0],
        .type = s->type,
        .seed = s->seed,
        .layers = s->layers,
        .width = s->width,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_size = s->head_size,
        .feed_forward = s->feed_forward,
        .vocabulary = s->vocabulary,
        .experts = s->experts,
        .experts_used = s->experts_used,
        .expert_width = s->expert_width,
    };
    const double begin = seconds_now();
    catch_interrupt();
    const int result = sluice_synth(s->arguments[1], &options, progress_step, &bar, &error);
    progress_end(&bar);
    return report_file(result, s->arguments[1], seconds_now() - begin, &error);
}
