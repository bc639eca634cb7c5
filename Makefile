# vit.c
#
#   make            build/cpu/train_vit
#   make test       builds and runs every test
#   make fuzz       builds the fuzz targets (clang) into build/fuzz
#   make SANITIZE=1 everything under AddressSanitizer and UBSan, in build/cpu-asan
#   make WERROR=1   warnings are errors, as in CI
#   make ARCH=x86-64-v3   code for another machine than this one
#
# scripts/deps.sh installs what is missing.

SANITIZE ?= 0
WERROR ?= 0
ARCH ?= native
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))

BUILD := build/cpu$(if $(filter 1,$(SANITIZE)),-asan)

X86 := $(filter x86_64,$(shell uname -m))
CFLAGS_BASE := -std=gnu11 -O3 -march=$(ARCH) $(if $(X86),-mprefer-vector-width=512) -ffp-contract=fast \
               -fno-math-errno -fno-trapping-math -fopenmp
CFLAGS_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
ifeq ($(SANITIZE),1)
CFLAGS_SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
endif
CPPFLAGS_ALL := -I. -Ikernels/cpu -D_GNU_SOURCE $(CPPFLAGS)
FLAGS := $(CFLAGS_BASE) $(CFLAGS_WARN) $(CFLAGS_SANITIZE) $(CPPFLAGS_ALL) $(CFLAGS)
LIBRARIES := -ldnnl -linih -lcjson -lm

SOURCES := $(wildcard core/*.c data/*.c layers/*.c layers/attention/*.c kernels/cpu/*.c)
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
BENCHES := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/bench_*.c))
FUZZERS := $(patsubst tests/%.c,build/fuzz/%,$(wildcard tests/fuzz_*.c))

all: $(BUILD)/train_vit
.PHONY: all test tests benches fuzz clean report
.SECONDARY:

# == What was found ==================================================================================================

found = $(shell printf '%s\n' $(2) | $(CC) -I. $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo yes)
line = $(if $(1),@printf '  found    %s\n' $(2),@printf '  MISSING  %s: %s\n' $(2) $(3))

report:
	@echo "vit.c for the CPU, $(CC), -march=$(ARCH)"
	$(call line,$(call found,dnnl,'#include <dnnl.h>'),"oneDNN","the matrix products; apt-get install libdnnl-dev")
	$(call line,$(call found,inih,'#include <ini.h>'),"inih","config files; apt-get install libinih-dev")
	$(call line,$(call found,cjson,'#include <cjson/cJSON.h>'),"cJSON","checkpoints; apt-get install libcjson-dev")
	$(call line,$(call found,stb,'#include <stb/stb_image.h>'),"stb_image","pictures; apt-get install libstb-dev")
	$(call line,$(call found,cmocka,'#include <stddef.h>' '#include <stdarg.h>' '#include <setjmp.h>' '#include <stdint.h>' '#include <cmocka.h>'),"cmocka","the tests only; apt-get install libcmocka-dev")

# == Building ========================================================================================================

# Changed flags rebuild everything: the stamp's time moves only when its text does.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(FLAGS)' | cmp -s - $@ || echo '$(CC) $(FLAGS)' > $@
FORCE:

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/train_%: $(BUILD)/train_%.o $(OBJECTS)
	@echo "LINK $@"
	@$(CC) $(FLAGS) $^ -o $@ $(LIBRARIES)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(OBJECTS)
	@echo "LINK $@"
	@$(CC) $(FLAGS) $^ -o $@ $(LIBRARIES) -lcmocka

tests: $(TESTS)
benches: $(BENCHES)
test: $(BUILD)/train_vit $(TESTS)
	@BUILD=$(BUILD) sh tests/run.sh

# == Fuzzing: clang's libFuzzer, the parsers alone ===================================================================

FUZZ_FLAGS := -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined $(CPPFLAGS_ALL)
FUZZ_SOURCES := core/config.c core/safetensors.c core/die.c data/cifar.c data/image.c data/file.c

fuzz: $(FUZZERS)
build/fuzz/%: tests/%.c $(FUZZ_SOURCES)
	@mkdir -p $(@D)
	@echo "FUZZ $@"
	@clang $(FUZZ_FLAGS) $^ -o $@ -linih -lcjson -lm

clean:
	rm -rf build

-include $(OBJECTS:.o=.d) $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d)
