/* The interpreter of a recipe: what to launch for a product of given sizes.
 *
 * An expression has integers, the names m, n, k and batch, + - *, parentheses, and ceil(a, b), which is a / b rounded
 * up, min(a, b) and max(a, b); nothing else. It is read once, into steps for a stack of 64-bit integers. */
#ifndef TILEWISE_LAUNCH_H
#define TILEWISE_LAUNCH_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TW_LARGEST 2147483647
#define TW_STACK 64
#define TW_DEEPEST 100
#define TW_MOST_ARGUMENTS 40
#define TW_MOST_MAPS 4

typedef struct {
    int operand; /* 0 to 3: A, B, C, the workspace */
    const char *offset;
    int element; /* CUtensorMapDataType */
    int rank;
    const char *dims[5];
    const char *strides[4];
    uint32_t box[5];
    int swizzle; /* CUtensorMapSwizzle */
} tw_map_recipe;

typedef struct {
    int operand; /* 0 to 3 for a pointer, else -1 */
    const char *value;
    const tw_map_recipe *map;
} tw_argument_recipe;

typedef struct {
    const char *entry;
    const char *grid;
    uint32_t block[2];
    uint32_t shared_bytes;
    const tw_argument_recipe *arguments;
    int argument_count;
    const void *cubin;
    const void *ptx; /* NULL, or ends with a zero */
} tw_launch_recipe;

typedef struct {
    const char *not_negative;
    const char *sentence;
} tw_need_recipe;

typedef struct {
    const tw_need_recipe *needs;
    int need_count;
    const tw_launch_recipe *launches;
    int launch_count;
    const char *workspace_bytes;
    int64_t zeroed_bytes;
    int64_t verdict_at; /* below 0: there is none */
    int dtype;          /* 0 float32, 1 float64, 2 float16, 3 bfloat16 */
    int element_bytes;
    int trans_a, trans_b;
} tw_recipe;

typedef struct {
    char operator; /* 'v' a number, '0' to '3' a name, or + - * c(eil) < (min) > (max) */
    int64_t number;
} tw_step;

typedef struct {
    tw_step *steps;
    int count;
} tw_expression;

typedef struct {
    const char *at;
    tw_step *steps;
    int count, height;
} tw_reader;

static const char *const tw_names[] = {"batch", "m", "n", "k"}; /* the longest first: no name begins another */
static int tw_read_sum(tw_reader *reader, int depth);

static int tw_put(tw_reader *reader, char operator, int64_t number)
{
    const int grown = operator == 'v' || (operator >= '0' && operator <= '3');
    reader->height += grown ? 1 : -1;
    reader->steps[reader->count].operator = operator;
    reader->steps[reader->count++].number = number;
    return reader->height <= TW_STACK;
}

static int tw_skip(tw_reader *reader, const char *word)
{
    const size_t length = strlen(word);
    while (*reader->at == ' ') {
        reader->at++;
    }
    if (strncmp(reader->at, word, length) != 0) {
        return 0;
    }
    reader->at += length;
    return 1;
}

static int tw_read_pair(tw_reader *reader, int depth, char operator)
{
    return tw_skip(reader, "(") && tw_read_sum(reader, depth + 1) && tw_skip(reader, ",") &&
           tw_read_sum(reader, depth + 1) && tw_skip(reader, ")") && tw_put(reader, operator, 0);
}

static int tw_read_factor(tw_reader *reader, int depth)
{
    int64_t number = 0;
    int digits = 0;
    if (tw_skip(reader, "(")) {
        return tw_read_sum(reader, depth + 1) && tw_skip(reader, ")");
    }
    if (tw_skip(reader, "ceil")) {
        return tw_read_pair(reader, depth, 'c');
    }
    if (tw_skip(reader, "min")) {
        return tw_read_pair(reader, depth, '<');
    }
    if (tw_skip(reader, "max")) {
        return tw_read_pair(reader, depth, '>');
    }
    for (int name = 0; name < 4; name++) {
        if (tw_skip(reader, tw_names[name])) {
            return tw_put(reader, (char)('0' + name), 0);
        }
    }
    for (; *reader->at >= '0' && *reader->at <= '9'; digits++) {
        const int digit = *reader->at++ - '0';
        if (number > (INT64_MAX - digit) / 10) {
            return 0;
        }
        number = 10 * number + digit;
    }
    return digits > 0 && tw_put(reader, 'v', number);
}

static int tw_read_term(tw_reader *reader, int depth)
{
    int right = tw_read_factor(reader, depth);
    while (right && tw_skip(reader, "*")) {
        right = tw_read_factor(reader, depth) && tw_put(reader, '*', 0);
    }
    return right;
}

static int tw_read_sum(tw_reader *reader, int depth)
{
    int right = depth <= TW_DEEPEST && tw_read_term(reader, depth);
    while (right) {
        const char operator = tw_skip(reader, "+") ? '+' : tw_skip(reader, "-") ? '-' : 0;
        if (!operator) {
            break;
        }
        right = tw_read_term(reader, depth) && tw_put(reader, operator, 0);
    }
    return right;
}

/* Read an expression; 0 if it is none or there is no memory. */
static int tw_read(const char *text, tw_expression *expression)
{
    tw_reader reader = {text, malloc((strlen(text) + 1) * sizeof(tw_step)), 0, 0};
    expression->steps = reader.steps;
    if (!reader.steps || !tw_read_sum(&reader, 0) || !tw_skip(&reader, "") || *reader.at) {
        return 0;
    }
    expression->count = reader.count;
    return 1;
}

static int tw_multiplied(int64_t left, int64_t right, int64_t *product)
{
    if (left != 0 && right != 0) {
        const int64_t bound = (left > 0) == (right > 0) ? INT64_MAX : INT64_MIN;
        if (right == -1 ? left == INT64_MIN : right > 0 ? (left > INT64_MAX / right || left < INT64_MIN / right)
                                              : left > 0 ? right < bound / left
                                                         : left < bound / right) {
            return 0;
        }
    }
    *product = left * right;
    return 1;
}

static int tw_applied(char operator, int64_t left, int64_t right, int64_t *value)
{
    switch (operator) {
    case '+':
        *value = (int64_t)((uint64_t)left + (uint64_t)right);
        return right >= 0 ? left <= INT64_MAX - right : left >= INT64_MIN - right;
    case '-':
        *value = (int64_t)((uint64_t)left - (uint64_t)right);
        return right >= 0 ? left >= INT64_MIN + right : left <= INT64_MAX + right;
    case '*':
        return tw_multiplied(left, right, value);
    case '<':
        *value = left < right ? left : right;
        return 1;
    case '>':
        *value = left > right ? left : right;
        return 1;
    default:
        *value = right < 1 ? 0 : left / right + (left % right > 0);
        return right >= 1;
    }
}

/* Work an expression out for batch, m, n and k; 0 if a step leaves 64 bits, or divides by less than 1. */
static int tw_value(const tw_expression *expression, const int64_t *sizes, int64_t *value)
{
    int64_t stack[TW_STACK + 1];
    int height = 0;
    for (int at = 0; at < expression->count; at++) {
        const tw_step *const step = &expression->steps[at];
        if (step->operator == 'v') {
            stack[height++] = step->number;
        } else if (step->operator >= '0' && step->operator <= '3') {
            stack[height++] = sizes[step->operator - '0'];
        } else {
            int64_t found = 0;
            height--;
            if (!tw_applied(step->operator, stack[height - 1], stack[height], &found)) {
                return 0;
            }
            stack[height - 1] = found;
        }
    }
    *value = stack[0];
    return 1;
}
#endif
