/* Runs to be compared (report/compare.h writes the page): those that differ in their seed alone are one group, with
 * means and errors. */
#ifndef VIT_REPORT_COMPARISON_H
#define VIT_REPORT_COMPARISON_H

#include <stdbool.h>

#include "core/error.h"
#include "report/facts.h"
#include "report/run_log.h"

/* A column of logs by which runs are compared. */
typedef struct {
    const char *column, *name, *unit; /* unit: "%" or "" */
    int decimals;
    bool greatest; /* the better */
    bool curve;    /* it has a chart */
    bool averaged; /* over the steps since the previous row; otherwise measured at the row's step */
} Metric;

enum { METRICS = 10 };
extern const Metric metrics[METRICS]; /* the most important ones first */

typedef struct {
    char *name, *value;
    bool place; /* of files, the machine or the process: runs that differ in it may still be one group */
} RunSetting;

typedef struct {
    char *path, *name; /* name: short; folders have one each */
    RunLog log;
    Facts facts;
    RunSetting *settings; /* [setting_count] by name: config.ini, the seed among them, and what ran the program */
    int setting_count;
    double *epochs; /* [log.rows]: number of epochs done at a row */
    bool row;       /* from a table of results: it has no curves, and its settings are in its name */
} ComparedRun;

typedef struct {
    char *name;
    const ComparedRun **runs; /* [count] */
    int count;
    double result; /* the mean of Comparison.metric that all of them have reached, or NaN */
} RunGroup;

typedef struct {
    ComparedRun *runs;
    RunGroup *groups; /* the best first, by `metric` */
    int run_count, group_count;
    const Metric *metric; /* the first of those that the most groups have; NULL: no group has any */
} Comparison;

/* On failure returns false with a line that names the file. */
bool comparison_read(Comparison *comparison, const char *const *paths, int count, Error *error);
void comparison_free(Comparison *comparison);

/* The value of a run's setting, NULL: it has none of this name. */
const char *run_setting(const ComparedRun *run, const char *name);

/* Statistics of the finite ones among `count` values.  With fewer than two, deviation and error are NaN; with none, the
 * mean is NaN. */
typedef struct {
    int count;
    double mean, deviation, error; /* the sample's standard deviation, and the standard error of the mean */
} Sample;
Sample sample_of(const double *values, int count);

/* A metric along a group's runs: mean and standard error over all of them, at the steps at which all have a value, with
 * the mean of their times, which a log of an old version lacks (NaN). */
typedef struct {
    int count, joined; /* joined: the largest number of values in a point */
    double *step, *epoch, *seconds, *mean, *error, *deviation; /* [count] */
} GroupCurve;

/* More than `most` points are joined with their neighbours: a metric that is averaged over steps gets their mean, a
 * metric that is measured at a step the last of them. */
void group_curve(GroupCurve *curve, const RunGroup *group, const Metric *metric, int most);
void group_curve_free(GroupCurve *curve);

/* The last point of group_curve, which all runs of the group have reached. */
typedef struct {
    double epoch;
    Sample sample;
} GroupResult;
GroupResult group_result(const RunGroup *group, const Metric *metric);

/* Properties of a run, NaN where they are not known: images/s is the median over the log's rows. */
typedef enum { RUN_SPEED, RUN_PARAMETERS, RUN_MACS, RUN_BYTES, RUN_SECONDS } RunProperty;
double run_property(const ComparedRun *run, RunProperty property);
Sample group_property(const RunGroup *group, RunProperty property);

#endif
