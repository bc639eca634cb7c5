/* The version of all programs, printed by --version; CHANGELOG.md has a heading for each release. */
#ifndef VIT_CORE_VERSION_H
#define VIT_CORE_VERSION_H

#define VIT_VERSION "0.2.0-dev"

/* The commit that was built, followed by "-dirty" if files had changed since; "" if it is not known. */
extern const char vit_commit[];

#endif
