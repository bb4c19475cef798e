// The registers of a wgmma instruction, whose names its text must spell out one by one: a thread has N / 2 sums.
//
// NAMES_n   what the text calls the sums    SUMS_n  the operands of an asm statement that are the sums
// NEXT_n    the numbers of the six operands after them
#define SUMS_OF_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_24 NAMES_16 ", %8, %9, %10, %11"
#define NAMES_32 NAMES_24 ", %12, %13, %14, %15"
#define NAMES_48 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_64 NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_80 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_128 NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_144 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_160 NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_168 NAMES_160 ", %80, %81, %82, %83"
#define NAMES_176 NAMES_168 ", %84, %85, %86, %87"
#define NAMES_192 NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_208 NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_224 NAMES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_240 NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define NAMES_256 NAMES_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8 SUMS_OF_4(0)
#define SUMS_16 SUMS_8, SUMS_OF_4(4)
#define SUMS_24 SUMS_16, SUMS_OF_4(8)
#define SUMS_32 SUMS_24, SUMS_OF_4(12)
#define SUMS_48 SUMS_32, SUMS_OF_4(16), SUMS_OF_4(20)
#define SUMS_64 SUMS_48, SUMS_OF_4(24), SUMS_OF_4(28)
#define SUMS_80 SUMS_64, SUMS_OF_4(32), SUMS_OF_4(36)
#define SUMS_96 SUMS_80, SUMS_OF_4(40), SUMS_OF_4(44)
#define SUMS_112 SUMS_96, SUMS_OF_4(48), SUMS_OF_4(52)
#define SUMS_128 SUMS_112, SUMS_OF_4(56), SUMS_OF_4(60)
#define SUMS_144 SUMS_128, SUMS_OF_4(64), SUMS_OF_4(68)
#define SUMS_160 SUMS_144, SUMS_OF_4(72), SUMS_OF_4(76)
#define SUMS_168 SUMS_160, SUMS_OF_4(80)
#define SUMS_176 SUMS_168, SUMS_OF_4(84)
#define SUMS_192 SUMS_176, SUMS_OF_4(88), SUMS_OF_4(92)
#define SUMS_208 SUMS_192, SUMS_OF_4(96), SUMS_OF_4(100)
#define SUMS_224 SUMS_208, SUMS_OF_4(104), SUMS_OF_4(108)
#define SUMS_240 SUMS_224, SUMS_OF_4(112), SUMS_OF_4(116)
#define SUMS_256 SUMS_240, SUMS_OF_4(120), SUMS_OF_4(124)
#define NEXT_8 4, 5, 6, 7, 8, 9
#define NEXT_16 8, 9, 10, 11, 12, 13
#define NEXT_24 12, 13, 14, 15, 16, 17
#define NEXT_32 16, 17, 18, 19, 20, 21
#define NEXT_48 24, 25, 26, 27, 28, 29
#define NEXT_64 32, 33, 34, 35, 36, 37
#define NEXT_80 40, 41, 42, 43, 44, 45
#define NEXT_96 48, 49, 50, 51, 52, 53
#define NEXT_112 56, 57, 58, 59, 60, 61
#define NEXT_128 64, 65, 66, 67, 68, 69
#define NEXT_144 72, 73, 74, 75, 76, 77
#define NEXT_160 80, 81, 82, 83, 84, 85
#define NEXT_168 84, 85, 86, 87, 88, 89
#define NEXT_176 88, 89, 90, 91, 92, 93
#define NEXT_192 96, 97, 98, 99, 100, 101
#define NEXT_208 104, 105, 106, 107, 108, 109
#define NEXT_224 112, 113, 114, 115, 116, 117
#define NEXT_240 120, 121, 122, 123, 124, 125
#define NEXT_256 128, 129, 130, 131, 132, 133
