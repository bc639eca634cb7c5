#include "report/html.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/base64.h"
#include "core/die.h"
#include "core/text.h"
#include "report/page_style.h"

/* == Texts ======================================================================================================== */

/* The number of bytes at `at` that XML does not allow: a control character, U+FFFE or U+FFFF. */
static size_t forbidden_bytes(const char *at) {
    if ((unsigned char)*at < 0x20) return !strchr("\t\n\r", *at);
    return !strncmp(at, "\xef\xbf\xbe", 3) || !strncmp(at, "\xef\xbf\xbf", 3) ? 3 : 0;
}

static const char *escaped(char c) {
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    default: return NULL;
    }
}

void html_text(FILE *out, const char *text) {
    char *valid = xstrdup(text ? text : "");
    text_make_utf8(valid);
    for (const char *at = valid; *at;) {
        size_t forbidden = forbidden_bytes(at);
        const char *instead = forbidden ? "?" : escaped(*at);
        if (instead)
            fputs(instead, out);
        else
            fputc(*at, out);
        at += forbidden ? forbidden : 1;
    }
    free(valid);
}

static void put_element(FILE *out, const char *begin, const char *text, const char *end) {
    if (!text) return;
    fputs(begin, out);
    html_text(out, text);
    fputs(end, out);
}

/* == The frame ==================================================================================================== */

void html_begin(FILE *out, const HtmlPage *page) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n"
          "<meta name=\"color-scheme\" content=\"light dark\"/>\n", out);
    if (page->reload_s > 0)
        fprintf(out, "<noscript><meta http-equiv=\"refresh\" content=\"%d\"/></noscript>\n", page->reload_s);
    put_element(out, "<title>", page->title, "</title>\n");
    fprintf(out, "<style>\n%s</style>\n</head>\n<body data-reload=\"%d\">\n<header>\n", page_style, page->reload_s);
    put_element(out, "<h1>", page->title, "</h1>\n");
    if (page->reload_s > 0)
        fprintf(out, "<span class=\"live\" title=\"this page loads itself again every %d s\">live</span>\n",
                page->reload_s);
    put_element(out, "<p>", page->subtitle, "</p>\n");
    fputs("</header>\n<main>\n", out);
}

/* The script writes the list of sections into <nav>. */
void html_end(FILE *out) {
    fprintf(out, "</main>\n<nav></nav>\n<script>/*<![CDATA[*/\n%s/*]]>*/</script>\n</body>\n</html>\n", page_script);
}

void html_figures(FILE *out, const HtmlFigure *figures, int count) {
    fputs("<div class=\"figures\">\n", out);
    for (int i = 0; i < count; i++) {
        put_element(out, "<div><span>", figures[i].label, "</span>");
        put_element(out, "<b>", figures[i].value, "</b>");
        put_element(out, "<small>", figures[i].note, "</small>");
        fputs("</div>\n", out);
    }
    fputs("</div>\n", out);
}

void html_section(FILE *out, const char *id, const char *title) {
    put_element(out, "<h2 id=\"", id, "\">");
    put_element(out, "", title, "</h2>\n");
}

void html_paragraph(FILE *out, const char *text) { put_element(out, "<p>", text, "</p>\n"); }

void html_command(FILE *out, const char *text) {
    put_element(out, "<div class=\"command\"><pre>", text, "</pre></div>\n");
}

void html_fold_begin(FILE *out, const char *title) {
    put_element(out, "<details>\n<summary>", title, "</summary>\n");
}

void html_fold_end(FILE *out) { fputs("</details>\n", out); }

void html_grid_begin(FILE *out) { fputs("<div class=\"grid\">\n", out); }
void html_grid_end(FILE *out) { fputs("</div>\n", out); }

/* == Tables ======================================================================================================= */

/* The end of the number at the beginning of the text, with commas between thousands, or NULL if there is none. */
static const char *skip_number(const char *text) {
    text += *text == '-' || *text == '+';
    size_t length = strspn(text, "0123456789.,");
    if (!isdigit((unsigned char)text[*text == '.']) || text[length - 1] == ',') return NULL;
    text += length;
    const char *exponent = text + 1 + (*text == 'e' && (text[1] == '-' || text[1] == '+'));
    return *text == 'e' && isdigit((unsigned char)*exponent) ? exponent + strspn(exponent, "0123456789") : text;
}

/* A number that may have an error and a unit: "61.24", "1,024", "61.24 ± 0.31 %", "5e-4", "12.3 GB". */
static bool is_number(const char *cell) {
    const char *plus_minus = "±", *end = skip_number(cell);
    if (!end) return false;
    const char *error = end + strspn(end, " ");
    if (!strncmp(error, plus_minus, strlen(plus_minus))) {
        error += strlen(plus_minus);
        end = skip_number(error + strspn(error, " "));
    }
    return end && strlen(end) <= 10 && !strpbrk(end, "0123456789,-");
}

static const char *cell_at(const HtmlTable *table, int row, int column) {
    const char *cell = table->cells[(size_t)row * (size_t)table->columns + (size_t)column];
    return cell ? cell : "";
}

static bool is_numeric(const HtmlTable *table, int column) {
    int numbers = 0;
    for (int row = 0; row < table->rows; row++) {
        const char *cell = cell_at(table, row, column);
        if (*cell && !is_number(cell)) return false;
        numbers += *cell != 0;
    }
    return numbers > 0;
}

void html_table(FILE *out, const HtmlTable *table) {
    bool *numeric = xcalloc((size_t)table->columns + 1, sizeof *numeric, "columns of a table");
    fprintf(out, "<div class=\"table\"><table%s>\n", table->sortable ? " class=\"sort\"" : "");
    put_element(out, "<caption>", table->caption, "</caption>\n");
    if (table->names) fputs("<thead><tr>", out);
    for (int i = 0; i < table->columns; i++) {
        numeric[i] = is_numeric(table, i);
        if (!table->names) continue;
        put_element(out, numeric[i] ? "<th class=\"n\">" : "<th>", table->names[i] ? table->names[i] : "", "</th>");
    }
    fputs(table->names ? "</tr></thead>\n<tbody>\n" : "<tbody>\n", out);
    for (int row = 0; row < table->rows; row++) {
        fputs("<tr>", out);
        for (int i = 0; i < table->columns; i++) {
            fputs("<td", out);
            if (numeric[i]) fputs(" class=\"n\"", out);
            if (i == 0 && table->titles) put_element(out, " title=\"", table->titles[row], "\"");
            put_element(out, ">", cell_at(table, row, i), "</td>");
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    free(numeric);
}

/* == Pictures ===================================================================================================== */

void html_picture(FILE *out, const HtmlPicture *picture) {
    put_element(out, "<figure class=\"picture\"><img alt=\"", picture->alt ? picture->alt : "", "\"");
    if (picture->pixelated) fputs(" class=\"pixels\"", out);
    if (picture->width > 0) fprintf(out, " width=\"%d\"", picture->width);
    put_element(out, " src=\"data:", picture->type, ";base64,");
    base64_put(out, picture->bytes, picture->size);
    fputs("\"/>", out);
    put_element(out, "<figcaption>", picture->caption, "</figcaption>");
    fputs("</figure>\n", out);
}
