#include "report/axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool axis_shows(double value, bool logarithmic) {
    return fabs(value) < 1e200 && (!logarithmic || value > 1e-200);
}

/* == Numbers ====================================================================================================== */

/* "1.50e-04" becomes "1.5e-4", and "2e+20" "2e20". */
static void shorten_exponent(char *text) {
    char *e = strchr(text, 'e');
    if (!e) return;
    char *digits = e + 2, *end = e;
    bool negative = e[1] == '-';
    while (*digits == '0') digits++;
    if (memchr(text, '.', (size_t)(e - text))) {
        while (end[-1] == '0') end--;
        if (end[-1] == '.') end--;
    }
    *end++ = 'e';
    if (negative) *end++ = '-';
    memmove(end, digits, strlen(digits) + 1);
}

/* The unit for numbers of this size. */
static double unit_of(double size, const char **suffix) {
    static const char *const suffixes[] = {"k", "M", "G", "T"};
    double unit = 1e3;
    *suffix = "";
    if (size < 9999.5 || size >= 1e15) return 1;
    int i = 0;
    for (; size >= 1e3 * unit; i++) unit *= 1e3;
    *suffix = suffixes[i];
    return unit;
}

void number_text(char text[NUMBER_SIZE], double value) {
    const char *suffix;
    double unit = unit_of(fabs(value), &suffix);
    if (unit == 1e3)
        snprintf(text, NUMBER_SIZE, "%.0f", value);
    else
        snprintf(text, NUMBER_SIZE, "%.4g%s", value / unit, suffix);
    shorten_exponent(text);
}

/* == Ticks ======================================================================================================== */

static int exponent_of(double value) { return (int)floor(log10(value) + 1e-9); }

static double round_step(double step) {
    double power = pow(10, exponent_of(step)), part = step / power;
    return power * (part < 1.0001 ? 1 : part < 2.0001 ? 2 : part < 5.0001 ? 5 : 10);
}

/* The labels of one axis have the same unit and as many digits as distinguish its ticks. */
static void label_ticks(Axis *axis, double step) {
    const char *suffix;
    double size = fmax(fabs(axis->ticks[0]), fabs(axis->ticks[axis->count - 1])), unit = unit_of(size, &suffix);
    if (exponent_of(step / unit) < -2) {
        unit = 1;
        suffix = "";
    }
    bool powers = size < 0.9e-3 || size >= 1e15;
    for (int i = 0; i < axis->count; i++) {
        double tick = axis->ticks[i];
        int digits = powers && tick != 0 ? exponent_of(fabs(tick)) - exponent_of(step) : -exponent_of(step / unit);
        if (digits < 0) digits = 0;
        if (digits > 15) digits = 15;
        if (tick == 0)
            snprintf(axis->labels[i], NUMBER_SIZE, "0");
        else
            snprintf(axis->labels[i], NUMBER_SIZE, powers ? "%.*e%s" : "%.*f%s", digits, tick / unit, suffix);
        shorten_exponent(axis->labels[i]);
    }
}

static void linear_ticks(Axis *axis, int most) {
    double step = round_step((axis->high - axis->low) / most), first = ceil(axis->low / step - 1e-6);
    axis->count = 0;
    for (int i = 0; i < AXIS_TICKS && step * (first + i) <= axis->high + 1e-6 * step; i++)
        axis->ticks[axis->count++] = step * (first + i);
    label_ticks(axis, step);
}

/* The ticks become the powers of ten times `factors` on the axis, of every `every`-th power; returns their number, of
 * which only those that fit are kept. */
static int count_powers(Axis *axis, const double *factors, int factor_count, int every) {
    int found = 0, last = exponent_of(axis->high);
    for (int power = exponent_of(axis->low); power <= last; power++)
        for (int k = 0; k < factor_count; k++) {
            double tick = factors[k] * pow(10, power);
            if (power % every || tick < axis->low * (1 - 1e-9) || tick > axis->high * (1 + 1e-9)) continue;
            if (found < AXIS_TICKS) axis->ticks[found] = tick;
            found++;
        }
    return found;
}

/* 1, 2 and 5 times powers of ten if there are few of them, otherwise all or some powers of ten; if not even two of them
 * are on the axis, it is so short that ticks are at equal distances. */
static void logarithmic_ticks(Axis *axis, int most) {
    static const double factors[] = {1, 2, 5};
    axis->count = count_powers(axis, factors, 3, 1);
    for (int every = 1; axis->count > most; every++) axis->count = count_powers(axis, factors, 1, every);
    if (axis->count < 2) {
        linear_ticks(axis, most);
        return;
    }
    for (int i = 0; i < axis->count; i++) number_text(axis->labels[i], axis->ticks[i]);
}

/* == The axis ===================================================================================================== */

static void widen(double *low, double *high, double margin) {
    double free = margin * (*high - *low);
    *low = *low >= 0 && *low < free ? 0 : *low - free;
    *high = *high <= 0 && *high > -free ? 0 : *high + free;
}

/* The range of one value, or of values that differ only by rounding: the value is in the middle, and 0 at the start. */
static void fit_one(Axis *axis, double value) {
    axis->low = value - fabs(value) / 10;
    axis->high = value + (fabs(value) > 1e-290 ? fabs(value) / 10 : 1);
    axis->ticks[0] = value;
    axis->count = 1;
    number_text(axis->labels[0], value);
}

void axis_fit(Axis *axis, double low, double high, bool logarithmic, double margin, int most) {
    *axis = (Axis){.logarithmic = logarithmic};
    if (high - low <= 1e-9 * fmax(fabs(low), fabs(high))) {
        fit_one(axis, low);
        return;
    }
    if (logarithmic) {
        double factor = exp(margin * (log(high) - log(low)));
        low /= factor;
        high *= factor;
    } else
        widen(&low, &high, margin);
    axis->low = low;
    axis->high = high;
    if (logarithmic)
        logarithmic_ticks(axis, most);
    else
        linear_ticks(axis, most);
}

double axis_place(const Axis *axis, double value) {
    double low = axis->low, high = axis->high;
    if (value <= low) return 0; /* which may have no logarithm */
    double part = axis->logarithmic ? (log(value) - log(low)) / (log(high) - log(low)) : (value - low) / (high - low);
    return fmin(part, 1);
}
