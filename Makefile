# vit.c
#
#   make            build/cpu/train_vit, train_detr, train_mask_rcnn, train_semantic_fpn, train_ar and pack_dataset
#   make report     what was found on this machine; make BACKEND=cuda report likewise
#   make test       builds and runs every test
#   make library    libvit, for C programs: build/cpu/libvit.so, libvit.a and vit.pc; its header is library/vit.h
#   make install    programs, the library, manual pages, configs and docs, in PREFIX (/usr/local) under DESTDIR; make uninstall
#   make browser    the code of the models as WebAssembly, in a page with trained models: build/browser/index.html
#   make clean
#   make cuda       the same programs for NVIDIA GPUs, in build/cuda; with PRECISION=FP32 in build/cuda-fp32
#   make test-cuda  builds and runs the kernel tests in both precisions, and CUDA against CPU, on this machine's GPU
#   make sanitize-cuda   the same kernel tests under compute-sanitizer's memcheck and racecheck
#   make emulate    the tests of the CUDA kernels, emulated on the CPU under AddressSanitizer and UBSan
#   make fuzz       builds the fuzz targets (clang) into build/fuzz
#   make tidy       clang-tidy and cppcheck on the sources and tests of this backend
#   make benches    the programs that time one part, build/cpu/tests/bench_*
#   make compile_commands.json           for editors: how every file is compiled
#   make SANITIZE=1                      everything under AddressSanitizer and UBSan, in build/cpu-asan
#   make SANITIZE=thread thread-tests    the loaders under ThreadSanitizer, in build/cpu-tsan
#
# Settings of all of these:
#   ARCH=portable        one program for every x86-64 machine from AVX2 on, which chooses at start; the one that install installs
#   ARCH=x86-64-v3       code for another machine
#   VARIANTS=            without the second precision, which takes as long again to compile
#   CPPFLAGS= CFLAGS= LDFLAGS=           more flags, as for libraries in one's own folder (CUDA: only -L of LDFLAGS); the
#                                        machine is that of ARCH, and there is no link-time optimisation
#   WERROR=1             warnings are errors, as in CI
#   MPI=0 WEBP=0 SOUND=0 VIDEO=0         without a library that is there (make/libraries.mk)
#   ONEDNN=0             matrix products and convolutions in plain C, in build/cpu-own (make/cpu.mk)
#   CUDA_ARCH=sm_90      and more for CUDA: make/cuda.mk
#
# scripts/deps.sh installs what is missing.

BACKEND ?= cpu
# The precision of activations; a CPU's default is float32.
PRECISION ?= $(if $(filter cpu,$(BACKEND)),FP32,BF16)
SANITIZE ?= 0
WERROR ?= 0
ARCH ?= $(if $(filter cpu,$(BACKEND)),$(if $(filter install install-built,$(MAKECMDGOALS)),portable,native),native)
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
# The machine that the compiler makes code for, which may be another than this one.
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
X86 := $(filter x86_64%,$(MACHINE))
# The machine for which tests and the first variant of a program are compiled; on other machines than x86, portable
# means the compiler's default.
MARCH := $(if $(filter portable,$(ARCH)),$(if $(X86),-march=x86-64-v3),-march=$(ARCH))
CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null))

BUILD := build/$(BACKEND)$(if $(filter portable,$(ARCH)),-portable)$(if $(filter emulate,$(BACKEND)),-$(PRECISION))
BUILD := $(BUILD)$(if $(filter cuda-FP32,$(BACKEND)-$(PRECISION)),-fp32)$(if $(filter cpu-BF16,$(BACKEND)-$(PRECISION)),-bf16)
BUILD := $(BUILD)$(if $(filter cpu-0,$(BACKEND)-$(ONEDNN)),-own)
BUILD := $(BUILD)$(if $(filter 1,$(SANITIZE)),-asan)$(if $(filter thread,$(SANITIZE)),-tsan)

CFLAGS_BASE := -std=gnu11 -O3 $(if $(filter cpu,$(BACKEND)),-fvisibility=hidden -ffunction-sections) $(if $(X86),-mprefer-vector-width=512) -ffp-contract=fast -fno-math-errno -fno-trapping-math -fopenmp
# clang warns if it does not vectorise a loop with omp simd, which is not an error of the source.
CFLAGS_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-psabi $(if $(CLANG),-Wno-pass-failed) \
               $(if $(filter 1,$(WERROR)),-Werror)
# -g1 is enough for line numbers in reports, and writing all of -g would take as long as the compilation itself.
# AddressSanitizer finds, at the access, what UBSan would find of null pointers and the ends of objects.
SANITIZERS := -g1 -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow -fno-sanitize-recover=undefined
CFLAGS_SANITIZE := $(if $(filter 1,$(SANITIZE)),-O1 $(SANITIZERS))$(if $(filter thread,$(SANITIZE)),-O1 -g1 -fsanitize=thread)

PROGRAMS := train_vit train_detr train_mask_rcnn train_semantic_fpn train_ar pack_dataset
LINK := $(CC)
VERSION := $(shell sed -n 's/.*VIT_VERSION "\(.*\)"/\1/p' core/version.h)

all: $(PROGRAMS:%=$(BUILD)/%)
# A recipe that fails leaves no target that looks complete.
.DELETE_ON_ERROR:
.PHONY: all clean test tests benches thread-tests report report-device FORCE
.SECONDARY:

include make/libraries.mk
# kernels/cpu and kernels/cuda each have a real.h with the type of an activation.
CPPFLAGS_ALL := -I. -Ikernels/$(if $(filter cpu,$(BACKEND)),cpu,cuda) -D_GNU_SOURCE $(if $(filter FP32,$(PRECISION)),-DVIT_FP32) \
                $(MPI_CPPFLAGS) $(VIDEO_CPPFLAGS) $(CPPFLAGS)
# What a distribution's CFLAGS must not change: variants have instructions of their own, and objcopy hides their symbols
# (make/cpu.mk), which it could not do in the code of link-time optimisation.
CFLAGS_LAST := $(if $(filter cpu,$(BACKEND)),-fPIC) $(MARCH) -fno-lto
FLAGS = $(CFLAGS_BASE) $(CFLAGS_WARN) $(CFLAGS_SANITIZE) $(CPPFLAGS_ALL) $(CFLAGS) $(CFLAGS_LAST)
# Every .c file outside kernels/ and tests/; if a library is missing, x_none.c replaces x.c (make/libraries.mk).
SOURCES := $(filter-out $(LEFT_OUT),$(wildcard core/*.c core/*/*.c training/*.c report/*.c data/*/*.c detection/*.c detection/*/*.c layers/*.c layers/*/*.c))
# The sources of train_vit's models, without oneDNN: for libvit in a browser and for its fuzzer.
MODEL_SOURCES := $(wildcard core/*.c core/config/*.c core/results/*.c training/*.c layers/*.c library/*.c \
    $(addprefix layers/,attention/*.c features/*.c pyramid/*.c vit/*.c)) \
    $(filter-out kernels/launcher/% %/onednn.c %_onednn.c,$(wildcard kernels/*/*.c))
# The rules that compile sources to programs: cpu, cuda or emulate.
include make/$(BACKEND).mk

OBJECTS := $(CU_SOURCES:%=$(BUILD)/%.o) $(SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/commit.o $(EMULATOR)

# == Building ========================================================================================================

# Writes a text to the target, whose time changes only with the text.
define stamp
@mkdir -p $(@D)
@echo '$1' | cmp -s - $@ || echo '$1' > $@
endef

# Changed flags rebuild everything.
$(BUILD)/flags: FORCE
	$(call stamp,$(CC) $(FLAGS) $(NVCC_FLAGS) $(CXXFLAGS_ALL) $(LDFLAGS))
FORCE:

# Files whose results must equal those of Pillow, numpy, pycocotools or DETR to the last bit are compiled without fused
# multiply-adds.
EXACT := data/masks/polygon data/masks/object_mask data/video/clips data/images/resample core/resampling data/images/pillow \
         data/images/randaugment data/detection/detection_augment data/segmentation/segmentation_augment detection/coco_eval \
         detection/mask_paste detection/postprocess $(basename $(wildcard detection/regions/*.c)) tests/data/test_randaugment tests/data/test_masks
$(EXACT:%=$(BUILD)/%.o): private FLAGS += -ffp-contract=off
# A test's references are small: with -O1 they compile in a quarter of the time.
$(BUILD)/tests/%.o: private FLAGS += -O1
$(BUILD)/tests/bench/%.o: private FLAGS += -O3
# gcc 14 does not recognise that stb_image sets the transparent colour before it uses it.
$(BUILD)/data/images/image.o: private FLAGS += $(if $(CLANG),,-Wno-maybe-uninitialized)

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(FLAGS) -MMD -MP -c $< -o $@

# The commit that is built, for the pages of runs (core/version.h); "" if this is not a checkout.
COMMIT := $(if $(wildcard .git),$(shell git describe --always --dirty --exclude '*' 2>/dev/null))
COMMIT_SOURCE := extern const char vit_commit[]; const char vit_commit[] = "$(COMMIT)";
$(BUILD)/commit.c: FORCE
	$(call stamp,$(COMMIT_SOURCE))
$(BUILD)/commit.o: $(BUILD)/commit.c $(BUILD)/flags
	@$(CC) $(FLAGS) -c $< -o $@

# The linker takes from an archive only the objects that a program needs, and with --as-needed only their libraries.
# The archive is made again if other sources replace some of its members (ONEDNN=0), because all of their objects may be
# old.
$(BUILD)/libtrain.a: $(OBJECTS) $(BUILD)/objects
	@rm -f $@
	@ar rcs $@ $(OBJECTS)
$(BUILD)/objects: FORCE
	@mkdir -p $(@D)
	@echo '$(OBJECTS)' | cmp -s - $@ || echo '$(OBJECTS)' > $@

# == Tests ===========================================================================================================

# The tests that use a device; the others are the same on every backend.
DEVICE_TESTS := $(shell sh tests/run.sh --device-tests)
program = $(BUILD)/tests/$(basename $(notdir $1))
TEST_SOURCES := $(wildcard tests/*/test_*.c tests/bench/bench_*.c) tests/parity.c
TEST_PROGRAMS := $(foreach f,$(TEST_SOURCES),$(call program,$f))
TESTS := $(if $(filter cpu,$(BACKEND)),$(filter $(BUILD)/tests/test_%,$(TEST_PROGRAMS)),$(DEVICE_TESTS:%=$(BUILD)/tests/%) $(EMULATOR_TESTS))
TOOLS := $(BUILD)/tests/parity $(BUILD)/tests/bench_attention # what scripts/gpu.sh runs besides tests
# Loaded before a program by LD_PRELOAD.  It is compiled without optimisation, so that the compiler replaces no call by
# a builtin.
SHIMS := $(if $(filter cpu,$(BACKEND)),$(BUILD)/tests/faults.so)

# Without FFmpeg test_video is a script that says so (make/cpu.mk).
COMPILED := $(filter-out $(if $(filter 0,$(VIDEO)),%/test_video.c),$(TEST_SOURCES))
$(foreach f,$(COMPILED),$(eval $(call program,$f): $(f:%.c=$(BUILD)/%.o)))
$(foreach f,$(COMPILED),$(call program,$f)): $(BUILD)/libtrain.a
	@mkdir -p $(@D)
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(filter %.o,$^) $(BUILD)/libtrain.a -o $@ $(LIBRARIES) $(if $(filter test_%,$(@F)),-lcmocka)

$(BUILD)/tests/faults.so: tests/faults.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) -std=gnu11 -O1 -fno-builtin -fPIC -shared $(filter-out -Wmissing-prototypes,$(CFLAGS_WARN)) -D_GNU_SOURCE $< -o $@ -ldl

tests: $(TESTS) $(TOOLS) $(SHIMS)
# The tests with threads of their own.  ThreadSanitizer does not recognise OpenMP's barriers, so they run with
# OMP_NUM_THREADS=1.
thread-tests: $(addprefix $(BUILD)/tests/,test_loader test_mixup test_detection_loader test_segmentation_loader)
benches: $(filter $(BUILD)/tests/bench_%,$(TEST_PROGRAMS))
test: $(PROGRAMS:%=$(BUILD)/%) tests
	@BUILD=$(BUILD) sh tests/run.sh

include make/checks.mk
include $(if $(filter cpu,$(BACKEND)),make/library.mk) make/install.mk make/browser.mk

clean:
	rm -rf build

-include $(patsubst %.o,%.d,$(OBJECTS) $(LIBRARY_OBJECTS) $(LAUNCHER) $(COUNTED) $(COUNTED_TEST)) \
    $(addsuffix .d,$(PROGRAMS:%=$(BUILD)/%) $(EMULATOR_TESTS)) $(TEST_SOURCES:%.c=$(BUILD)/%.d) \
    $(wildcard build/fuzz/*/*.d build/fuzz/*/*/*.d)
