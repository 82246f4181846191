#include "random.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

load_random load_random_new(uint64_t seed, uint64_t stream) {
    return (load_random){mix(mix(seed + 0x9e3779b97f4a7c15u) + stream * 0xd1342543de82ef95u)};
}

uint64_t load_random_next(load_random *r) {
    r->state += 0x9e3779b97f4a7c15u;
    return mix(r->state);
}

double load_random_unit(load_random *r) {
    return (double)(load_random_next(r) >> 11) * 0x1p-53;
}

int64_t load_random_below(load_random *r, int64_t count) {
    return (int64_t)(load_random_unit(r) * (double)count);
}

/* Box and Muller. */
double load_random_normal(load_random *r) {
    const double radius = sqrt(-2 * log1p(-load_random_unit(r)));
    return radius * cos(2 * 3.14159265358979323846 * load_random_unit(r));
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); below the shape 1 by a power
 * of a uniform number, as they say. */
double load_random_gamma(load_random *r, double shape) {
    if (shape == 1) {
        return -log1p(-load_random_unit(r));
    }
    double factor = 1;
    if (shape < 1) {
        factor = pow(1 - load_random_unit(r), 1 / shape);
        shape += 1;
    }
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        const double x = load_random_normal(r), root = 1 + c * x, v = root * root * root;
        if (root > 0 && log1p(-load_random_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) {
            return factor * d * v;
        }
    }
}

int64_t load_random_length(load_random *r, const load_length *length) {
    const double drawn =
        length->deviation > 0 ? length->mean + length->deviation * load_random_normal(r) : length->mean;
    return drawn < 1 ? 1 : drawn > 1e9 ? 1000000000 : llround(drawn);
}
