/* The fields of structures that Python mirrors, so that it can compare (native/layout.py). */
#ifndef FOREWORD_LAYOUT_H
#define FOREWORD_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *structure;
    const char *field; /* NULL: the whole structure */
    int64_t offset, size;
} Field;

#define WHOLE_OF(type) {#type, 0, 0, (int64_t)sizeof(type)}
#define FIELD(type, name)                                                                          \
    {#type, #name, (int64_t)offsetof(type, name), (int64_t)sizeof(((type *)0)->name)}

/* Every field of every structure, in order; the last entry has no structure. Each library has it.
 */
const Field *foreword_layout(void);

#endif
