# vit.c
#
#   make            build/cpu/train_vit
#   make test       builds and runs every test
#   make cuda       build/cuda/train_vit (PRECISION=BF16, or FP32 for comparisons; CUDA_ARCH=sm_90 ...)
#   make emulate    the tests of the CUDA kernels, emulated on the CPU under AddressSanitizer and UBSan
#   make fuzz       builds the fuzz targets (clang) into build/fuzz
#   make SANITIZE=1 everything under AddressSanitizer and UBSan, in build/cpu-asan
#   make WERROR=1   warnings are errors, as in CI
#   make ARCH=x86-64-v3   code for another machine than this one
#
# scripts/deps.sh installs what is missing.

BACKEND ?= cpu
PRECISION ?= BF16
SANITIZE ?= 0
WERROR ?= 0
ARCH ?= native
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
X86 := $(filter x86_64,$(shell uname -m))

BUILD := build/$(BACKEND)$(if $(filter emulate,$(BACKEND)),-$(PRECISION))$(if $(filter 1,$(SANITIZE)),-asan)

CFLAGS_BASE := -std=gnu11 -O3 -march=$(ARCH) $(if $(X86),-mprefer-vector-width=512) -ffp-contract=fast \
               -fno-math-errno -fno-trapping-math -fopenmp
CFLAGS_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-psabi $(if $(filter 1,$(WERROR)),-Werror)
ifeq ($(SANITIZE),1)
CFLAGS_SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
endif
KERNELS := $(if $(filter cpu,$(BACKEND)),kernels/cpu,kernels/cuda)
CPPFLAGS_ALL := -I. -I$(KERNELS) -D_GNU_SOURCE $(if $(filter FP32,$(PRECISION)),-DVIT_FP32) $(CPPFLAGS)
FLAGS := $(CFLAGS_BASE) $(CFLAGS_WARN) $(CFLAGS_SANITIZE) $(CPPFLAGS_ALL) $(CFLAGS)

SOURCES := $(wildcard core/*.c data/*.c layers/*.c layers/attention/*.c)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
BENCHES := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/bench_*.c))
FUZZERS := $(patsubst tests/%.c,build/fuzz/%,$(wildcard tests/fuzz_*.c))
LINK := $(CC)
LIBRARIES := -linih -lcjson -lm

ifeq ($(BACKEND),cpu)
SOURCES += $(wildcard kernels/cpu/*.c)
LIBRARIES += -ldnnl
endif

# The CUDA toolkit: CUDA_HOME, else where nvcc is.
ifeq ($(BACKEND),cuda)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell readlink -f "$$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"))
NVCC := $(CUDA_HOME)/bin/nvcc
# The architecture of the GPU in this machine, else Ampere and Hopper and PTX for what comes after.
GPU_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '.')
CUDA_ARCH ?= $(if $(GPU_ARCH),sm_$(GPU_ARCH),sm_80 sm_90)
GENCODE := $(foreach a,$(CUDA_ARCH),-gencode arch=$(a:sm_%=compute_%),code=$(a)) \
           $(if $(GPU_ARCH),,-gencode arch=compute_90,code=compute_90)
NVCC_FLAGS := -std=c++17 -O3 $(GENCODE) --expt-relaxed-constexpr -lineinfo $(CPPFLAGS_ALL) \
              -Xcompiler -Wall,-Wextra $(if $(filter 1,$(WERROR)),-Werror all-warnings) $(NVCCFLAGS)
CU_SOURCES := $(wildcard kernels/cuda/*.cu)
LINK := $(NVCC)
LIBRARIES += -lcublasLt -lcufft -lcudart -lgomp
endif

# The same kernels on the CPU: every thread of a block a fiber (tests/emulate/device.cuh).
ifeq ($(BACKEND),emulate)
CPPFLAGS_ALL := -Itests/emulate $(CPPFLAGS_ALL)
FLAGS := $(FLAGS) -Itests/emulate
CXXFLAGS_ALL := -std=c++17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fopenmp -Wall -Wextra \
                -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror) $(CPPFLAGS_ALL)
CFLAGS_SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
CU_SOURCES := $(filter-out kernels/cuda/runtime.cu kernels/cuda/linear.cu,$(wildcard kernels/cuda/*.cu))
EMULATOR := $(BUILD)/tests/emulate/emulate.o
TESTS := $(patsubst %,$(BUILD)/tests/test_%,attention features layers ripple model)
LINK := g++
endif

OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(CU_SOURCES:%.cu=$(BUILD)/%.o) $(EMULATOR)

all: $(BUILD)/train_vit
.PHONY: all cuda emulate test tests benches fuzz clean report FORCE
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
	@echo '$(CC) $(FLAGS) $(NVCC_FLAGS) $(CXXFLAGS_ALL)' | cmp -s - $@ || echo '$(CC) $(FLAGS) $(NVCC_FLAGS) $(CXXFLAGS_ALL)' > $@
FORCE:

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "$(if $(NVCC),NVCC,C++) $<"
	@$(if $(NVCC),$(NVCC) $(NVCC_FLAGS),g++ $(CXXFLAGS_ALL) -x c++) -MMD -MP -c $< -o $@

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $<"
	@g++ $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@

LINK_FLAGS := $(if $(NVCC),$(GENCODE),$(if $(CXXFLAGS_ALL),$(CXXFLAGS_ALL),$(FLAGS)))

$(BUILD)/train_%: $(BUILD)/train_%.o $(OBJECTS)
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(OBJECTS)
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES) -lcmocka

cuda:
	@$(MAKE) --no-print-directory BACKEND=cuda

# Both precisions; the kernels see tiny odd sizes.
emulate:
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=FP32 tests
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=BF16 tests

tests: $(TESTS)
benches: $(BENCHES)
test: $(BUILD)/train_vit $(TESTS)
	@BUILD=$(BUILD) sh tests/run.sh

# == Fuzzing: clang's libFuzzer, the parsers alone ===================================================================

FUZZ_FLAGS := -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined $(CPPFLAGS_ALL)
FUZZ_SOURCES := core/config.c core/safetensors.c core/die.c core/files.c data/cifar.c data/image.c

# stb_image's JPEG arithmetic wraps on purpose; it copies zero bytes from NULL, and shifts by 32 where a damaged stream has
# run out of bits (whatever that gives is one more wrong pixel).
build/fuzz/fuzz_image: FUZZ_FLAGS += -fwrapv -fno-sanitize=nonnull-attribute,shift-exponent
$(BUILD)/data/image.o: CFLAGS += -fwrapv

fuzz: $(FUZZERS)
build/fuzz/%: tests/%.c $(FUZZ_SOURCES)
	@mkdir -p $(@D)
	@echo "FUZZ $@"
	@clang $(FUZZ_FLAGS) $^ -o $@ -linih -lcjson -lm

clean:
	rm -rf build

-include $(OBJECTS:.o=.d) $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d)
