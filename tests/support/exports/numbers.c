/* Prints what the interpreter of C makes of each argument, and whether it reads it; for tests alone. */
#include <stdio.h>

#include "tilewise_launch.h"

int main(int count, char **texts)
{
    const int64_t sizes[4] = {1, 1, 1, 1};
    for (int at = 1; at < count; at++) {
        tw_expression expression = {NULL, 0};
        int64_t value = 0;
        const int right = tw_read(texts[at], &expression) && tw_value(&expression, sizes, &value);
        printf("%d %lld\n", right, (long long)value);
        free(expression.steps);
    }
    return 0;
}
