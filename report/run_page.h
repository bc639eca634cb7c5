/* report.html of a run folder, made from its log.csv, config.ini and report.json, as far as these exist. */
#ifndef VIT_REPORT_RUN_PAGE_H
#define VIT_REPORT_RUN_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "core/config/config.h"
#include "core/error.h"
#include "report/facts.h"

enum { REPORT_BYTES = 400000 /* the largest size of a page */ };

/* Plain facts that a page shows if they exist:
 *   program    "train_vit"           unit       "images"
 *   state      "running", "stopped", "done" or "failed"; reason: why it stopped or failed
 *   sentence   the model in a sentence              parameters, macs   their numbers
 *   device, host, threads, ranks, precision, version, commit     the machine and the program
 *   began, written   seconds since 1970             eta_s  seconds that are left
 *   epoch, epochs    done, and in all      batches   steps of an epoch
 *   resume     the command that continues it        result   the last line of the run
 *
 * Writes the page.  `config` has the groups of settings that the program knows; the values are those of config.ini.  If
 * it is NULL, or the file has other settings, those that differ from the defaults are not marked.
 * reload_s: as in HtmlPage.  On failure returns false with a line that names the file. */
bool run_page_write(FILE *out, const char *folder, const Facts *facts, const Config *config, int reload_s,
                    Error *error);

/* Calls run_page_write for <folder>/report.html, or for `path` if that is not NULL; the file is replaced atomically. */
bool run_page_replace(const char *folder, const char *path, const Facts *facts, const Config *config, int reload_s,
                      Error *error);

#endif
