/* Is a text well-formed XML, as far as pages of reports use XML: elements with attributes, entities, CDATA in comments of
 * a script, a document type?  Any parser of pages accepts what this does. */
#ifndef VIT_TESTS_XML_H
#define VIT_TESTS_XML_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"

enum { XML_DEPTH = 64, XML_ATTRIBUTES = 32, XML_NAME = 64 };

typedef struct {
    const char *at;
    char open[XML_DEPTH][XML_NAME];
    int depth;
    const char *fault; /* NULL: none */
} Xml;

static inline bool xml_fail(Xml *xml, const char *fault) {
    if (!xml->fault) xml->fault = fault;
    return false;
}

static inline bool xml_name(Xml *xml, char name[XML_NAME]) {
    size_t length = strspn(xml->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:");
    if (!length || length >= XML_NAME || strchr("0123456789-", *xml->at)) return xml_fail(xml, "no name");
    snprintf(name, XML_NAME, "%.*s", (int)length, xml->at);
    xml->at += length;
    return true;
}

/* Characters up to one of `ends`. */
static inline bool xml_text(Xml *xml, const char *ends) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", NULL};
    for (; *xml->at && !strchr(ends, *xml->at); xml->at++) {
        unsigned char c = (unsigned char)*xml->at;
        if (c < 0x20 && !strchr("\t\n\r", c)) return xml_fail(xml, "a control character");
        if (!strncmp(xml->at, "\xef\xbf\xbe", 3) || !strncmp(xml->at, "\xef\xbf\xbf", 3))
            return xml_fail(xml, "U+FFFE or U+FFFF");
        if (c == '<') return xml_fail(xml, "< in an attribute");
        if (!strncmp(xml->at, "]]>", 3)) return xml_fail(xml, "]]> outside CDATA");
        const char *const *entity = entities;
        while (c == '&' && *entity && strncmp(xml->at, *entity, strlen(*entity))) entity++;
        if (c == '&' && !*entity) return xml_fail(xml, "an unknown entity");
    }
    return *xml->at || xml_fail(xml, "the text ends within an element");
}

/* What follows "<name"; *empty: the element ends with "/>". */
static inline bool xml_attributes(Xml *xml, bool *empty) {
    char names[XML_ATTRIBUTES][XML_NAME];
    for (int count = 0;; count++) {
        size_t space = strspn(xml->at, " \n");
        xml->at += space;
        *empty = !strncmp(xml->at, "/>", 2);
        if (*empty || *xml->at == '>') return xml->at += 1 + *empty, true;
        if (!space) return xml_fail(xml, "no space before an attribute");
        if (count == XML_ATTRIBUTES || !xml_name(xml, names[count])) return xml_fail(xml, "attributes");
        for (int k = 0; k < count; k++)
            if (!strcmp(names[k], names[count])) return xml_fail(xml, "an attribute twice");
        if (strncmp(xml->at, "=\"", 2)) return xml_fail(xml, "an attribute without a value");
        xml->at += 2;
        if (!xml_text(xml, "\"")) return false;
        xml->at++;
    }
}

static inline bool xml_element(Xml *xml) {
    bool empty;
    char name[XML_NAME];
    if (*xml->at == '/') {
        xml->at++;
        if (!xml_name(xml, name)) return false;
        if (*xml->at++ != '>') return xml_fail(xml, "an end without >");
        if (!xml->depth || strcmp(xml->open[--xml->depth], name)) return xml_fail(xml, "the end of another element");
        return true;
    }
    if (xml->depth == XML_DEPTH || !xml_name(xml, xml->open[xml->depth])) return xml_fail(xml, "no element");
    xml->depth++;
    if (!xml_attributes(xml, &empty)) return false;
    xml->depth -= empty;
    return true;
}

/* NULL, or what is wrong.  The text has one element around all others, or several where it is a part of a page. */
static inline const char *xml_fault(const char *text) {
    static const char cdata[] = "<![CDATA[", type[] = "<!DOCTYPE html>";
    Xml xml = {.at = text};
    if (!text_is_utf8(text)) return "not UTF-8";
    if (!strncmp(xml.at, type, sizeof type - 1)) xml.at += sizeof type - 1;
    while (*xml.at && !xml.fault) {
        if (!strncmp(xml.at, cdata, sizeof cdata - 1)) {
            const char *end = strstr(xml.at, "]]>");
            if (!end) return "CDATA without an end";
            xml.at = end + 3;
        } else if (*xml.at == '<') {
            xml.at++;
            xml_element(&xml);
        } else if (xml.depth)
            xml_text(&xml, "<");
        else if (strchr(" \n", *xml.at))
            xml.at++;
        else
            return "text outside the elements";
    }
    return xml.fault ? xml.fault : xml.depth ? "an element is not closed" : NULL;
}

#endif
