/* Give the parsers of the shim random changes of good input: `fuzz ROUNDS SEED FILE...`. Built with sanitizers, which end
   it at the first access out of bounds; it ends itself where a promise of a header is broken. */
#include "../../shim/answer.h"
#include "../../shim/cpus.h"
#include "../../shim/json.h"
#include "../../shim/vcpus.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096, CHANGES = 8 };

static uint64_t state;

static size_t below(size_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return limit ? (size_t)(state % limit) : 0;
}

static void promise(bool is_kept, const char *what)
{
    if (!is_kept) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static size_t change(char *bytes, size_t length)
{
    static const char likely[] = "0123456789{}[]\",:=\\\n ok error\0";
    for (size_t left = below(CHANGES); left > 0 && length > 0; left--) {
        size_t at = below(length), count = 1 + below(16);
        switch (below(4)) {
        case 0:
            bytes[at] = (char)below(256);
            break;
        case 1:
            bytes[at] = likely[below(sizeof likely)];
            break;
        case 2: /* cut */
            count = count < length - at ? count : length - at;
            memmove(bytes + at, bytes + at + count, length - at - count);
            length -= count;
            break;
        default: /* repeat */
            count = count < length - at ? count : length - at;
            if (length + count <= LONGEST) {
                memmove(bytes + at + count, bytes + at, length - at);
                length += count;
            }
        }
    }
    return below(10) ? length : below(length + 1);
}

static void try_answer(const char *bytes, size_t length)
{
    char *copy = malloc(length + 1), *name, *value;
    memcpy(copy, bytes, length);
    copy[length] = '\0';
    struct answer answer = answer_read(copy, length);
    if (answer.kind == ANSWER_OK || answer.kind == ANSWER_ERROR) {
        promise(strlen(answer.body) == answer.length, "a body ends where it says");
        char *body = answer.body;
        size_t seen = 0;
        while ((name = answer_line(&body, &value)))
            seen += strlen(name) + (value ? strlen(value) : 0);
        promise(seen <= answer.length, "lines are parts of the body");
    }
    free(copy);
}

static void walk(struct json whole)
{
    const char *at = NULL;
    struct json name, value;
    while (json_next(whole, &at, &name, &value)) {
        promise(value.start >= whole.start && value.end <= whole.end && value.start < value.end, "values lie inside");
        int number;
        promise(!json_number(value, 1024, &number) || (number >= 0 && number <= 1024), "numbers have a limit");
        walk(value);
    }
}

static void try_status(const char *bytes, size_t length)
{
    static struct vcpus vcpus;
    char *copy = malloc(length ? length : 1);
    memcpy(copy, bytes, length);
    struct json status = json_text(copy, length);
    walk(status);
    const char *reason = vcpus_read(status, below(2) ? "main" : NULL, &vcpus);
    for (int cpu = 0; cpu < CPUS_MOST; cpu++)
        promise(!vcpus.own.has[cpu] || vcpus.owned.has[cpu] || reason, "its own CPUs are owned");
    free(copy);
}

static void try_list(const char *bytes, size_t length)
{
    static struct cpus cpus, again;
    static char list[LIST_MOST], mask[MASK_MOST];
    char *copy = malloc(length + 1);
    memcpy(copy, bytes, length);
    copy[length] = '\0';
    if (cpus_parse(copy, &cpus)) {
        cpus_list(&cpus, list);
        cpus_mask(&cpus, mask);
        promise(cpus_parse(list, &again) && !memcmp(&cpus, &again, sizeof cpus), "a list is read as it was");
    }
    free(copy);
}

static size_t read_seed(const char *path, char bytes[LONGEST])
{
    FILE *file = fopen(path, "rb");
    promise(file != NULL, path);
    size_t length = fread(bytes, 1, LONGEST, file);
    fclose(file);
    return length;
}

int main(int count, char **words)
{
    static char seed[LONGEST], bytes[LONGEST];
    promise(count > 3, "usage: fuzz ROUNDS SEED FILE...");
    state = strtoull(words[2], NULL, 10) * 2 + 1;
    for (long left = strtol(words[1], NULL, 10); left > 0; left--) {
        size_t length = read_seed(words[3 + below((size_t)count - 3)], seed);
        for (int times = 0; times < 50; times++) {
            memcpy(bytes, seed, length);
            size_t changed = change(bytes, length);
            try_answer(bytes, changed);
            try_status(bytes, changed);
            try_list(bytes, changed);
        }
    }
    return 0;
}
