/* Command lines in the forms of CMK's docopt: `--pool=P`, `--pool P`, unique beginnings, options anywhere before
   `--`. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>

struct option {
    const char *name;     /* with its dashes */
    bool has_value;
    const char *obsolete; /* why it does nothing, for a warning; NULL: it does something */
    const char *value;    /* found; NULL: the option is not there. "" of one without a value */
};

/* Fill in the values of options, the last of which has no name. What is left of `words` are the positional ones,
   ended by NULL; `--` stays among them. Return false, having told why, where a word is no option. */
bool options_parse(char **words, struct option *options);

#endif
