/* Reads lines of "recipe m n k batch" and prints what the interpreter of C makes of each; for tests alone.
 *
 * tables.h has `recipes`, an array of pointers to recipes. */
#include <stdio.h>

#include "tilewise_launch.h"
#include "tables.h"

static int64_t worked_out(const char *text, const int64_t *sizes, int *right)
{
    tw_expression expression = {NULL, 0};
    int64_t value = 0;
    *right = *right && tw_read(text, &expression) && tw_value(&expression, sizes, &value);
    free(expression.steps);
    return value;
}

static void print_map(const tw_map_recipe *map, const int64_t *sizes, int *right)
{
    printf(" map %d %lld %d", map->operand, (long long)worked_out(map->offset, sizes, right), map->element);
    for (int dim = 0; dim < map->rank; dim++) {
        printf(" %lld", (long long)worked_out(map->dims[dim], sizes, right));
    }
    for (int dim = 0; dim + 1 < map->rank; dim++) {
        printf(" %lld", (long long)worked_out(map->strides[dim], sizes, right));
    }
    for (int dim = 0; dim < map->rank; dim++) {
        printf(" %u", (unsigned)map->box[dim]);
    }
    printf(" %d", map->swizzle);
}

static void print_launches(const tw_recipe *recipe, const int64_t *sizes, int *right)
{
    printf("%lld %lld", (long long)worked_out(recipe->workspace_bytes, sizes, right), (long long)recipe->zeroed_bytes);
    for (int at = 0; at < recipe->launch_count; at++) {
        const tw_launch_recipe *const launch = &recipe->launches[at];
        printf("; %s %lld %u %u %u", launch->entry, (long long)worked_out(launch->grid, sizes, right),
               (unsigned)launch->block[0], (unsigned)launch->block[1], (unsigned)launch->shared_bytes);
        for (int each = 0; each < launch->argument_count; each++) {
            const tw_argument_recipe *const argument = &launch->arguments[each];
            if (argument->map) {
                print_map(argument->map, sizes, right);
            } else if (argument->operand >= 0) {
                printf(" p%d", argument->operand);
            } else {
                printf(" %lld", (long long)worked_out(argument->value, sizes, right));
            }
        }
    }
}

int main(void)
{
    int number;
    long long m, n, k, batch;
    while (scanf("%d %lld %lld %lld %lld", &number, &m, &n, &k, &batch) == 5) {
        const int64_t sizes[4] = {batch, m, n, k};
        const tw_recipe *const recipe = recipes[number];
        int right = 1, inside = 1;
        for (int at = 0; at < recipe->need_count; at++) {
            inside = inside && worked_out(recipe->needs[at].not_negative, sizes, &inside) >= 0;
        }
        if (inside) {
            print_launches(recipe, sizes, &right);
        }
        puts(!inside ? "outside" : right ? "" : "; overflow");
    }
    return 0;
}
