#include "report/page_style.h"

const char page_style[] = "";

const char page_script[] = "";
