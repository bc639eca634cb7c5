# vit.c
#
#   make            build/cpu/train_vit, train_detr, train_ar and pack_dataset
#   make test       builds and runs every test
#   make cuda       build/cuda/train_vit, train_detr and train_ar; with PRECISION=FP32, for comparisons, build/cuda-fp32/train_vit
#   make test-cuda  builds and runs the kernel tests in both precisions, and CUDA against CPU, on this machine's GPU
#   make sanitize-cuda   the same kernel tests under compute-sanitizer's memcheck and racecheck
#   make emulate    the tests of the CUDA kernels, emulated on the CPU under AddressSanitizer and UBSan
#   make fuzz       builds the fuzz targets (clang) into build/fuzz
#   make SANITIZE=1 everything under AddressSanitizer and UBSan, in build/cpu-asan
#   make SANITIZE=thread thread-tests   the loaders under ThreadSanitizer, in build/cpu-tsan
#   make WERROR=1   warnings are errors, as in CI
#   make ARCH=portable    one program for every x86-64 machine from AVX2 on, which chooses at start; what install takes
#   make ARCH=x86-64-v3   code for another machine than this one
#   make VARIANTS=  without the second precision, which takes as long again to compile
#   make MPI=0      a single process, where MPI is there but not wanted
#   make install    programs, manual pages, configs and docs, in PREFIX (/usr/local) under DESTDIR; make uninstall
#   make tidy       clang-tidy and cppcheck on the sources and tests of this backend
#   make compile_commands.json   for editors: how every file is compiled
#   make WEBP=0     no WebP pictures, where libwebp is there but not wanted
#   make SOUND=0    no WAV files, where libsndfile and libsamplerate are there but not wanted
#   make VIDEO=0    no video files, where FFmpeg's libraries are there but not wanted
#   make report     what was found; make BACKEND=cuda report likewise
#
# For CUDA: CUDA_HOME, CUDNN_HOME, NCCL_HOME, CUDA_ARCH="sm_80 sm_90", CUDNN=0, CUFFT=0, NCCL=0; NVCC_LINES= makes programs a third
# smaller, without the lines of the source that profilers and compute-sanitizer show.  To copy the program to another
# machine, build it with ARCH=x86-64-v3 MPI=0 NCCL=0: train_vit then needs the driver, libcublasLt, libcufft and libcudnn (beside
# it, or in LD_LIBRARY_PATH).
#
# scripts/deps.sh installs what is missing.

BACKEND ?= cpu
# Of activations; a CPU's default is float32.
PRECISION ?= $(if $(filter cpu,$(BACKEND)),FP32,BF16)
SANITIZE ?= 0
WERROR ?= 0
ARCH ?= $(if $(filter cpu,$(BACKEND)),$(if $(filter install install-built,$(MAKECMDGOALS)),portable,native),native)
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
# Of the machine that the compiler makes code for, which may be another than this one.
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
X86 := $(filter x86_64%,$(MACHINE))
# What tests and the first variant of a program are compiled for; elsewhere than on x86, portable is the compiler's default.
MARCH := $(if $(filter portable,$(ARCH)),$(if $(X86),-march=x86-64-v3),-march=$(ARCH))
# clang warns where it does not vectorise a loop that asks for it with omp simd: no fault of the source.
CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null))

BUILD := build/$(BACKEND)$(if $(filter portable,$(ARCH)),-portable)$(if $(filter emulate,$(BACKEND)),-$(PRECISION))$(if $(filter cuda-FP32,$(BACKEND)-$(PRECISION)),-fp32)$(if $(filter cpu-BF16,$(BACKEND)-$(PRECISION)),-bf16)$(if $(filter 1,$(SANITIZE)),-asan)$(if $(filter thread,$(SANITIZE)),-tsan)

CFLAGS_BASE := -std=gnu11 -O3 $(MARCH) $(if $(X86),-mprefer-vector-width=512) -ffp-contract=fast \
               -fno-math-errno -fno-trapping-math -fopenmp
CFLAGS_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-psabi $(if $(CLANG),-Wno-pass-failed) \
               $(if $(filter 1,$(WERROR)),-Werror)
# -g1: a report's lines need no more, and the whole of -g takes as long to write as the rest to compile.  What UBSan would
# see of null pointers and the ends of objects, AddressSanitizer sees at the access.
SANITIZERS := -g1 -fsanitize=address,undefined -fno-sanitize=null,object-size,pointer-overflow -fno-sanitize-recover=undefined
ifeq ($(SANITIZE),1)
CFLAGS_SANITIZE := -O1 $(SANITIZERS)
endif
ifeq ($(SANITIZE),thread)
CFLAGS_SANITIZE := -O1 -g1 -fsanitize=thread
endif
KERNELS := $(if $(filter cpu,$(BACKEND)),kernels/cpu,kernels/cuda)

# MPI, for several processes, where its compiler wrapper is.
MPICC ?= mpicc
MPI ?= $(shell command -v $(MPICC) >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(MPI),1)
MPI_CPPFLAGS := -DVIT_MPI $(patsubst -I%,-isystem %,$(filter -I%,$(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile-info)))
MPI_LIBRARIES := $(filter -L% -l%,$(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link-info))
endif

# libwebp, for WebP pictures, where its header is.
WEBP ?= $(shell printf '\043include <webp/decode.h>\n' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(WEBP),1)
WEBP_LIBRARIES := -lwebp
endif
WEBP_SOURCE := data/images/webp$(if $(filter 1,$(WEBP)),,_none).c

# libsndfile and libsamplerate, for sound, where the headers of both are.
SOUND ?= $(shell printf '\043include <sndfile.h>\n\043include <samplerate.h>\n' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(SOUND),1)
SOUND_LIBRARIES := -lsndfile -lsamplerate
endif
SOUND_SOURCE := data/sequences/sound$(if $(filter 1,$(SOUND)),,_none).c

# FFmpeg's libraries, for video files, where pkg-config knows them.  Programs load them when they open a video; only the
# tests that make videos are linked with them.
VIDEO_PACKAGES := libavformat libavcodec libswscale libavutil
VIDEO ?= $(shell pkg-config --exists $(VIDEO_PACKAGES) 2>/dev/null && printf '\043include <libavformat/avformat.h>\n' | \
           $(CC) $(CPPFLAGS) $$(pkg-config --cflags $(VIDEO_PACKAGES)) -E -x c - >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(VIDEO),1)
VIDEO_CPPFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(VIDEO_PACKAGES)))
VIDEO_LIBRARIES := $(shell pkg-config --libs $(VIDEO_PACKAGES))
endif
VIDEO_SOURCE := $(if $(filter 1,$(VIDEO)),data/video/video.c data/video/video_library.c,data/video/video_none.c)
CPPFLAGS_ALL := -I. -I$(KERNELS) -D_GNU_SOURCE $(if $(filter FP32,$(PRECISION)),-DVIT_FP32) $(MPI_CPPFLAGS) $(VIDEO_CPPFLAGS) $(CPPFLAGS)
FLAGS := $(CFLAGS_BASE) $(CFLAGS_WARN) $(CFLAGS_SANITIZE) $(CPPFLAGS_ALL) $(CFLAGS)

SOURCES := $(filter-out data/images/webp% data/sequences/sound% data/video/video.c data/video/video_none.c data/video/video_library.c,$(wildcard core/*.c training/*.c data/*/*.c detection/*.c layers/*.c layers/*/*.c)) \
           $(WEBP_SOURCE) $(SOUND_SOURCE) $(VIDEO_SOURCE)
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
SHIMS := $(if $(filter cpu,$(BACKEND)),$(BUILD)/tests/faults.so)
TOOLS := $(BUILD)/tests/parity $(BUILD)/tests/bench_attention # what scripts/gpu.sh runs besides tests
BENCHES := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/bench_*.c))
FUZZERS := $(patsubst tests/%.c,build/fuzz/%,$(filter-out $(if $(filter 1,$(VIDEO)),,tests/fuzz_video.c),$(wildcard tests/fuzz_*.c)))
LINK := $(CC)
LIBRARIES := -linih -ljansson -ljpeg $(WEBP_LIBRARIES) $(SOUND_LIBRARIES) -lxxhash -lpthread -lm -ldl $(MPI_LIBRARIES)

ifeq ($(BACKEND),cpu)
SOURCES += $(filter-out kernels/launcher/%,$(wildcard kernels/*/*.c))
LIBRARIES += -ldnnl
endif

# The CUDA toolkit: CUDA_HOME, else where nvcc is.
ifeq ($(BACKEND),cuda)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell readlink -f "$$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"))
NVCC := $(CUDA_HOME)/bin/nvcc
# The architecture of the GPU in this machine, else Ampere and Hopper and PTX for what comes after.
GPU_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]*\)$$/\1\2/p' | head -1)
CUDA_ARCH ?= $(if $(GPU_ARCH),sm_$(GPU_ARCH),sm_80 sm_90)
GENCODE := $(foreach a,$(CUDA_ARCH),-gencode arch=$(a:sm_%=compute_%),code=$(a)) \
           $(if $(GPU_ARCH),,-gencode arch=compute_90,code=compute_90)
# The lines of the source, for profilers and compute-sanitizer, are a third of a program's bytes.
NVCC_LINES ?= -lineinfo
NVCC_FLAGS := -std=c++17 -O3 $(GENCODE) --expt-relaxed-constexpr $(NVCC_LINES) $(CPPFLAGS_ALL) \
              -Xcompiler -Wall,-Wextra $(if $(filter 1,$(WERROR)),-Werror all-warnings) $(NVCCFLAGS)
# The longest first: one of them takes as long as ten others.
CU_SOURCES := $(shell ls -S kernels/*/*.cu) tests/emulate/check_values.cu
LINK := $(NVCC)
# The static library where there is one: what is left to find on another machine should be little.
archive = $(if $(filter /%,$(shell $(CC) -print-file-name=lib$(1).a)),-l:lib$(1).a,-l$(1))
# A library in one of these folders; pip's packages have only the file with the number, as libcublasLt.so.13.
shared = $(or $(if $(wildcard $(addsuffix /lib$(1).so,$(2))),-l$(1)),$(addprefix -l:,$(notdir $(firstword $(wildcard $(addsuffix /lib$(1).so.[0-9]*,$(2)))))),-l$(1))
CUDA_LIBRARIES := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/*/lib $(CUDA_HOME)/lib))
LIBRARIES := $(foreach l,inih jansson jpeg $(WEBP_LIBRARIES:-l%=%) xxhash,$(call archive,$l)) \
             $(SOUND_LIBRARIES) $(MPI_LIBRARIES) $(call shared,cublasLt,$(CUDA_LIBRARIES)) $(call archive,gomp) -lm -ldl -lpthread
LINK_FLAGS := -cudart static $(addprefix -L,$(CUDA_LIBRARIES)) -Xlinker --as-needed -Xlinker -rpath='$$ORIGIN$(addprefix :,$(CUDA_LIBRARIES))' \
              -Xcompiler -static-libgcc,-static-libstdc++

# cuDNN, for the convolutions of the detector's backbone and of hybrid stems: CUDNN_HOME, else the toolkit's.
CUDNN_HOME ?= $(CUDA_HOME)
CUDNN ?= $(if $(wildcard $(CUDNN_HOME)/include/cudnn.h /usr/include/cudnn.h),1,0)
ifeq ($(CUDNN),1)
NVCC_FLAGS += -DVIT_CUDNN -I$(CUDNN_HOME)/include
CUDNN_LIBRARIES := $(wildcard $(CUDNN_HOME)/lib64 $(CUDNN_HOME)/lib)
LIBRARIES += $(addprefix -L,$(CUDNN_LIBRARIES)) $(call shared,cudnn,$(CUDNN_LIBRARIES))
endif

# cuFFT, for lisa and gf.
CUFFT ?= $(if $(wildcard $(CUDA_HOME)/include/cufft.h),1,0)
ifeq ($(CUFFT),1)
NVCC_FLAGS += -DVIT_CUFFT
LIBRARIES += $(call shared,cufft,$(CUDA_LIBRARIES))
endif

# NCCL, for several GPUs: NCCL_HOME, else the toolkit's.  Ranks come from MPI, so there is no use for one without the other.
NCCL_HOME ?= $(CUDA_HOME)
NCCL ?= $(if $(wildcard $(NCCL_HOME)/include/nccl.h /usr/include/nccl.h),$(MPI),0)
ifeq ($(NCCL),1)
NVCC_FLAGS += -DVIT_NCCL -I$(NCCL_HOME)/include
LIBRARIES += -L$(NCCL_HOME)/lib $(call shared,nccl,$(NCCL_HOME)/lib)
endif
endif

# The same sources on the CPU: every thread of a block a fiber (tests/emulate/device.cuh), CUDA's libraries stand-ins.
ifeq ($(BACKEND),emulate)
CPPFLAGS_ALL := -Itests/emulate -Itests/emulate/cuda -DVIT_CUDNN -DVIT_CUFFT $(if $(filter 1,$(MPI)),-DVIT_NCCL) $(CPPFLAGS_ALL)
# The kernels are sanitized, the C files not: build/cpu-asan has them.
FLAGS := $(FLAGS) -Itests/emulate -O1
# No call may be made twice of one: where threads meet is told by the address (-fno-thread-jumps).
CXXFLAGS_ALL := -std=c++17 -O1 $(SANITIZERS) -fopenmp -Wall -Wextra \
                -fno-thread-jumps -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror) $(CPPFLAGS_ALL)
CFLAGS_SANITIZE := $(SANITIZERS)
CU_SOURCES := $(shell ls -S kernels/*/*.cu)
EMULATOR := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/emulate/test_%,$(wildcard tests/emulate/*.cpp)))
UNSANITIZED := $(filter-out -g1 -fsanitize% -fno-sanitize%,$(CXXFLAGS_ALL))
$(BUILD)/tests/emulate/fibers.o $(BUILD)/tests/emulate/arithmetic.o $(BUILD)/tests/emulate/traffic.o: \
    private CXXFLAGS_ALL := $(UNSANITIZED) -O3 $(MARCH)
# The kernels of the models whose bytes are counted: calls of tests/emulate/traffic.cpp in the place of the sanitizers.
COUNTED := $(patsubst %,$(BUILD)/counted/%.o,tests/emulate/emulate $(patsubst %,kernels/%.cu, \
    device/runtime landmarks/low_rank linear/gelu linear/linear linear/linear_gelu linear_attention/feature_mlp \
    linear_attention/linear_attention linear_attention/spe_conv linear_attention/spe_sine lisa/global_filter \
    lisa/lisa_dense lisa/lisa_fft norm/l2_normalize norm/layernorm offsets/patterns offsets/weighted_attention \
    ripple/ripple_pairs ripple/ripple_weights softmax/softmax_attention softmax/softmax_head \
    softmax/thresholded_attention tokens/images tokens/tokens training/cross_entropy training/optimizer))
$(COUNTED) $(BUILD)/counted/tests/emulate/test_traffic.o: \
    private CXXFLAGS_ALL := $(UNSANITIZED) -fsanitize=thread --param tsan-instrument-func-entry-exit=0
WRAPPED := $(foreach f,_Z17kernels_workspacem kernels_reserve gemm_peak_gflops memory_peak_gbytes activations_at_once \
                       device_shares_cores,-Wl,--wrap=$f)
LINK := g++
endif

# The tests that ask a device for something; the others are the same on every backend.
DEVICE_TESTS := $(shell sh tests/run.sh --device-tests)
ifneq ($(BACKEND),cpu)
TESTS := $(DEVICE_TESTS:%=$(BUILD)/tests/%) \
         $(if $(filter emulate,$(BACKEND)),$(BUILD)/tests/emulate/test_emulator $(BUILD)/tests/emulate/test_standins)
endif

OBJECTS := $(CU_SOURCES:%=$(BUILD)/%.o) $(SOURCES:%.c=$(BUILD)/%.o) $(EMULATOR)

PROGRAMS := train_vit train_detr train_ar pack_dataset

all: $(PROGRAMS:%=$(BUILD)/%)
.PHONY: need-clang all install install-built uninstall tidy cuda test-cuda sanitize-cuda need-nvcc need-gpu emulate test tests thread-tests benches fuzz clean report report-device FORCE
.SECONDARY:

# == What was found ==================================================================================================

found = $(shell printf '%s\n' $(2) | $(CC) -I. $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo yes)
line = $(if $(1),@printf '  found    %s\n' $(2),@printf '  MISSING  %s: %s\n' $(2) $(3))

ifeq ($(BACKEND),cuda)
report-device:
	@echo "vit.c for CUDA, $(PRECISION), $(or $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([^,]*\),.*/nvcc \1/p'),no nvcc) in $(CUDA_HOME), $(CUDA_ARCH)"
	$(call line,$(wildcard $(CUDA_HOME)/include/cublasLt.h),"cuBLASLt","the matrix products; part of the CUDA toolkit (CUDA_HOME)")
	$(if $(filter 1,$(NCCL)),@echo "  found    NCCL",@echo "  without  NCCL: one GPU only; NCCL_HOME says where it is; it needs MPI")
	$(if $(filter 1,$(CUDNN)),@echo "  found    cuDNN",@echo "  without  cuDNN: convolutions (detector, hybrid stems) take plain kernels, which are slow; CUDNN_HOME says where it is")
	$(if $(filter 1,$(CUFFT)),@echo "  found    cuFFT",@echo "  without  cuFFT: lisa and gf transform in shared memory alone; part of the CUDA toolkit")
else
report-device:
	@echo "vit.c for the CPU, $(CC), $(or $(MARCH),the compiler's own choice of processor)$(if $(VARIANTS), (also: $(VARIANTS)))"
	$(call line,$(call found,dnnl,'#include <dnnl.h>'),"oneDNN","matrix products and convolutions; apt-get install libdnnl-dev")
endif

report: report-device
	$(call line,$(call found,inih,'#include <ini.h>'),"inih","config files; apt-get install libinih-dev")
	$(call line,$(call found,jansson,'#include <jansson.h>'),"jansson","checkpoints and COCO's annotations; apt-get install libjansson-dev")
	$(call line,$(call found,stb,'#include <stb/stb_image.h>'),"stb_image","pictures; apt-get install libstb-dev")
	$(call line,$(call found,jpeg,'#include <stdio.h>' '#include <jpeglib.h>'),"libjpeg-turbo","JPEG; apt-get install libjpeg-dev")
	$(call line,$(call found,xxhash,'#include <xxhash.h>'),"xxHash","checksums of packed data sets; apt-get install libxxhash-dev")
	$(if $(filter 1,$(WEBP)),@echo "  found    libwebp",@echo "  without  libwebp: no WebP pictures; apt-get install libwebp-dev")
	$(if $(filter 1,$(SOUND)),@echo "  found    libsndfile and libsamplerate",@echo "  without  libsndfile and libsamplerate: no WAV files; apt-get install libsndfile1-dev libsamplerate0-dev")
	$(if $(filter 1,$(VIDEO)),@echo "  found    FFmpeg's headers; the libraries are loaded when a video is opened",@echo "  without  FFmpeg's libraries: no video files; apt-get install libavformat-dev libavcodec-dev libswscale-dev pkg-config")
	$(if $(filter 1,$(MPI)),@echo "  found    MPI",@echo "  without  MPI: one process only; apt-get install libopenmpi-dev openmpi-bin")
	$(call line,$(call found,cmocka,'#include <stddef.h>' '#include <stdarg.h>' '#include <setjmp.h>' '#include <stdint.h>' '#include <cmocka.h>'),"cmocka","the tests only; apt-get install libcmocka-dev")

# == Building ========================================================================================================

# Changed flags rebuild everything: the stamp's time moves only when its text does.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(FLAGS) $(NVCC_FLAGS) $(CXXFLAGS_ALL)' | cmp -s - $@ || echo '$(CC) $(FLAGS) $(NVCC_FLAGS) $(CXXFLAGS_ALL)' > $@
FORCE:

# Weights of 22 bits are rounded from doubles that are Pillow's to the last bit, frames of a clip from numpy's.
$(BUILD)/data/video/clips.o $(BUILD)/data/images/resample.o: private FLAGS += -ffp-contract=off

# gcc 12 crashes when it vectorises a maximum by fmax for arm64, which tests do here and there.
$(BUILD)/tests/%.o: private FLAGS += $(if $(filter aarch64%,$(MACHINE)),-fno-tree-loop-vectorize)

# gcc 14 does not see that stb_image sets the transparent colour before it uses it.
$(BUILD)/data/images/image.o: private FLAGS += $(if $(CLANG),,-Wno-maybe-uninitialized)

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "$(if $(NVCC),NVCC,C++) $<"
	@$(if $(NVCC),$(NVCC) $(NVCC_FLAGS),g++ $(CXXFLAGS_ALL) -x c++) -MMD -MP -c $< -o $@

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $<"
	@g++ $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@

LINK_FLAGS := $(if $(NVCC),$(GENCODE) $(LINK_FLAGS),$(if $(CXXFLAGS_ALL),$(CXXFLAGS_ALL) $(WRAPPED),$(FLAGS)))

# From an archive a program takes what it needs, and with --as-needed only the libraries that this needs.
$(BUILD)/libvit.a: $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^

# == Variants ========================================================================================================

# A program for a CPU is a launcher and one or more variants: all of the program's objects, compiled for one set of
# instructions and one precision, in one relocatable object without global symbols.  The launcher finds them by a section
# of pointers (kernels/device/variant.h), in the order in which they are linked, newest instructions first.
ifeq ($(BACKEND),cpu)
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
# Those beside the one in $(BUILD), each made by a make of its own in $(BUILD)-NAME.
ifeq ($(origin VARIANTS)$(SANITIZE)$(PRECISION)$(if $(X86),x86),undefined0FP32x86)
ifeq ($(ARCH),portable)
VARIANTS := v4-bf16 v4
else
VARIANTS := $(if $(shell $(CC) $(MARCH) -dM -E -x c /dev/null 2>/dev/null | grep AVX512BF16__),bf16)
endif
endif
SETTINGS_v4 := ARCH=x86-64-v4 PRECISION=FP32
SETTINGS_v4-bf16 := ARCH="x86-64-v4 -mavx512bf16" PRECISION=BF16
SETTINGS_bf16 := PRECISION=BF16
ONCE := $(filter-out %bf16,$(VARIANTS)) # a packer has no precision

define variant
.PHONY: variant-$1
variant-$1:
	@$$(MAKE) -s --no-print-directory VARIANTS= BUILD=$(BUILD)-$1 $(SETTINGS_$1) $(PROGRAMS:%=$(BUILD)-$1/%.variant)
$(PROGRAMS:%=$(BUILD)-$1/%.variant): variant-$1 ;
endef
$(foreach v,$(VARIANTS),$(eval $(call variant,$v)))

$(BUILD)/%.variant: $(BUILD)/%.o $(BUILD)/libvit.a
	@$(CC) -r -nostdlib -Wl,-u,kernels_choose $^ -o $@.all
	@$(OBJCOPY) --keep-global-symbol=none $@.all $@
	@rm $@.all

# For the oldest processor, as it must run where no variant can.
LAUNCHER := $(BUILD)/launcher/kernels/launcher/launcher.o $(BUILD)/launcher/kernels/device/processor.o
$(BUILD)/launcher/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "CC $< (launcher)"
	@$(CC) $(filter-out $(MARCH),$(FLAGS)) $(if $(X86),-march=x86-64) -O2 -MMD -MP -c $< -o $@

$(BUILD)/variants: FORCE
	@mkdir -p $(@D)
	@echo '$(VARIANTS)' | cmp -s - $@ || echo '$(VARIANTS)' > $@

$(BUILD)/train_%: $(LAUNCHER) $(foreach v,$(VARIANTS),$(BUILD)-$v/train_%.variant) $(BUILD)/train_%.variant $(BUILD)/variants
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(filter-out $(BUILD)/variants,$^) -o $@ $(LIBRARIES)

$(BUILD)/pack_%: $(LAUNCHER) $(foreach v,$(ONCE),$(BUILD)-$v/pack_%.variant) $(BUILD)/pack_%.variant $(BUILD)/variants
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(filter-out $(BUILD)/variants,$^) -o $@ $(LIBRARIES)
else
$(BUILD)/train_%: $(BUILD)/train_%.o $(BUILD)/libvit.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES)

$(BUILD)/pack_%: $(BUILD)/pack_%.o $(BUILD)/libvit.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES)

$(BUILD)/counted/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $< (counted)"
	@g++ $(CXXFLAGS_ALL) -x c++ -MMD -MP -c $< -o $@
$(BUILD)/counted/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $< (counted)"
	@g++ $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@
$(BUILD)/counted/train_vit: $(BUILD)/train_vit.o
$(BUILD)/counted/test_traffic: $(BUILD)/counted/tests/emulate/test_traffic.o
$(BUILD)/counted/train_vit $(BUILD)/counted/test_traffic: $(COUNTED) $(BUILD)/libvit.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(filter %.o,$^) $(BUILD)/libvit.a -o $@ $(LIBRARIES) $(if $(findstring test,$@),-lcmocka)
counted: $(BUILD)/counted/train_vit $(BUILD)/counted/test_traffic
.PHONY: counted
endif

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libvit.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES) $(if $(filter test_%,$(notdir $@)),-lcmocka)

# It makes its own videos, for which it is linked with the libraries.
ifeq ($(VIDEO),1)
$(BUILD)/tests/test_video: private LIBRARIES += $(VIDEO_LIBRARIES)
else
$(BUILD)/tests/test_video: $(BUILD)/flags
	@mkdir -p $(@D)
	@printf '#!/bin/sh\necho 1..1\necho "ok 1 # SKIP no FFmpeg in this build"\n' > $@
	@chmod +x $@
endif

# Put before a program by LD_PRELOAD.  Without optimisation: the names of calls are what counts, and no builtin.
$(BUILD)/tests/faults.so: tests/faults.c
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) -std=gnu11 -O1 -fno-builtin -fPIC -shared $(filter-out -Wmissing-prototypes,$(CFLAGS_WARN)) -D_GNU_SOURCE $< -o $@ -ldl

cuda: need-nvcc
	@$(MAKE) --no-print-directory BACKEND=cuda report
	@$(MAKE) --no-print-directory BACKEND=cuda

need-nvcc:
	@command -v nvcc >/dev/null || [ -x "$(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc" ] || \
		{ echo "there is no nvcc here: install the CUDA toolkit, or say CUDA_HOME=where/it/is"; exit 1; }
need-gpu:
	@[ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1 || \
		{ echo "make $(MAKECMDGOALS) needs an NVIDIA GPU, and there is none here"; exit 1; }

# In float32 test_model makes more than 100,000 forward passes, and shares the GPU with the other tests.
test-cuda: need-gpu need-nvcc
	@$(MAKE) --no-print-directory BACKEND=cuda PRECISION=FP32 all tests
	@$(MAKE) --no-print-directory BACKEND=cuda PRECISION=BF16 all tests
	@$(MAKE) --no-print-directory all build/cpu/tests/parity
	@BUILD=build/cuda-fp32 VIT_TEST_TIMEOUT=3600 sh tests/run.sh $(DEVICE_TESTS)
	@BUILD=build/cuda sh tests/run.sh $(DEVICE_TESTS)
	@sh tests/cuda_vs_cpu.sh

# Under racecheck a launch takes some hundred times as long: the reduced cases of the emulator.
sanitize-cuda: need-gpu need-nvcc
	@command -v compute-sanitizer >/dev/null || { echo "there is no compute-sanitizer here (CUDA toolkit)"; exit 1; }
	@$(MAKE) --no-print-directory BACKEND=cuda PRECISION=BF16 tests
	@for tool in memcheck racecheck; do for test in $(or $(SANITIZE_TESTS),$(DEVICE_TESTS)); do \
		echo "-- compute-sanitizer --tool $$tool build/cuda/tests/$$test"; \
		VIT_TEST_REDUCED=1 compute-sanitizer --tool $$tool --error-exitcode 9 build/cuda/tests/$$test \
			>build/cuda/tests/$$test.$$tool.log 2>&1 || { tail -n 40 build/cuda/tests/$$test.$$tool.log; exit 1; }; \
		tail -n 1 build/cuda/tests/$$test.$$tool.log; \
	done; done

# Both precisions; the kernels see tiny odd sizes.
emulate:
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=FP32 tests
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=BF16 tests

tests: $(TESTS) $(TOOLS) $(SHIMS)
# What uses threads of its own.  ThreadSanitizer does not know OpenMP's barriers: to be run with OMP_NUM_THREADS=1.
THREAD_TESTS := test_loader test_mixup test_detection_loader
thread-tests: $(THREAD_TESTS:%=$(BUILD)/tests/%)
benches: $(BENCHES)
test: $(PROGRAMS:%=$(BUILD)/%) $(TESTS) $(TOOLS) $(SHIMS)
	@BUILD=$(BUILD) sh tests/run.sh

# == Installing ======================================================================================================

# What a user of the programs needs; the other scripts build, test and measure in a checkout.
PREFIX ?= /usr/local
SHARED := $(wildcard configs/*/*.ini) $(addprefix scripts/,convert_weights.py fetch_cifar.sh prepare_data.py plot_attention.py plot_model.py plot_run.py plots.py) \
          tests/reference/safetensors_io.py # plots.py and this one are modules of the scripts
DOCUMENTS := README.md CHANGELOG.md CONTRIBUTING.md LICENSE $(wildcard docs/*.md docs/*.csv docs/images/*)
VERSION := $(shell sed -n 's/.*VIT_VERSION "\(.*\)"/\1/p' core/version.h)
SHARE := $(PREFIX)/share/vit.c
INSTALLED := $(PROGRAMS:%=$(PREFIX)/bin/%) $(PROGRAMS:%=$(PREFIX)/share/man/man1/%.1) $(SHARED:%=$(SHARE)/%) \
             $(DOCUMENTS:%=$(PREFIX)/share/doc/vit.c/%)

install: $(PROGRAMS:%=$(BUILD)/%)
	@$(MAKE) --no-print-directory install-built

# As another user than the one who builds: nothing is compiled.
install-built:
	@mkdir -p $(BUILD)/man
	@for program in $(PROGRAMS); do $(BUILD)/$$program --help > $(BUILD)/man/$$program.txt && \
		awk -f scripts/manpage.awk -v version='$(VERSION)' -v share='$(SHARE)' $(BUILD)/man/$$program.txt \
			> $(BUILD)/man/$$program.1 || exit 1; done
	@umask 022 && mkdir -p $(foreach f,bin share/man/man1 share/vit.c share/doc/vit.c,"$(DESTDIR)$(PREFIX)/$f")
	@install -m 755 $(PROGRAMS:%=$(BUILD)/%) "$(DESTDIR)$(PREFIX)/bin"
	@install -m 644 $(PROGRAMS:%=$(BUILD)/man/%.1) "$(DESTDIR)$(PREFIX)/share/man/man1"
	@cp --parents $(SHARED) "$(DESTDIR)$(SHARE)"
	@cp --parents $(DOCUMENTS) "$(DESTDIR)$(PREFIX)/share/doc/vit.c"
	@chmod -R u=rwX,go=rX "$(DESTDIR)$(SHARE)" "$(DESTDIR)$(PREFIX)/share/doc/vit.c"
	@echo "installed in $(DESTDIR)$(PREFIX)"

# Files of anyone else stay, and the folders that hold them.
uninstall:
	@rm -f $(foreach f,$(INSTALLED),"$(DESTDIR)$f")
	@for folder in "$(DESTDIR)$(SHARE)" "$(DESTDIR)$(PREFIX)/share/doc/vit.c"; do \
		if [ -d "$$folder" ]; then find "$$folder" -depth -type d -empty -delete; fi; done
	@echo "uninstalled from $(DESTDIR)$(PREFIX)"

# == For editors and checkers ========================================================================================

# What make would run, as data: every compilation of `all tests benches` with its flags, for clangd and clang-tidy.
compile_commands.json: FORCE
	@$(MAKE) -nB --no-print-directory VARIANTS= all tests benches | \
		sed -n 's/^ccache //; s/\\/\\\\/g; s/"/\\"/g; s|^\([^ ].* -c \([^ ]*\) -o [^ ]*\.o\)$$|{"directory": "$(CURDIR)", "file": "\2", "command": "\1"}|p' | \
		sed '1s/^/[/; $$!s/$$/,/; $$s/$$/]/' > $@
	@echo "$@: $$(grep -c '"file"' $@) files"

# Both are clean: .clang-tidy and .cppcheck say what is off, and why.  data/images/image.c holds stb's implementation, whose
# findings would be counted as ours.
tidy: compile_commands.json
	@command -v clang-tidy >/dev/null && command -v cppcheck >/dev/null && \
		echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c - 2>/dev/null || { echo "make tidy needs clang-tidy," \
		"cppcheck and clang's omp.h: apt-get install clang clang-tidy cppcheck libomp-dev"; exit 1; }
	@printf '%s\n' $(filter-out data/images/image.c,$(SOURCES)) $(PROGRAMS:%=%.c) $(wildcard kernels/launcher/*.c) | xargs -P $$(nproc) -n 1 clang-tidy -p . --quiet
	@cppcheck --project=compile_commands.json --enable=warning,performance,portability --suppressions-list=.cppcheck \
		--error-exitcode=1 --quiet -j $$(nproc) --template='{file}:{line}: {severity}: {message} [{id}]'

# == Fuzzing: clang's libFuzzer, the parsers alone ===================================================================

FUZZ_FLAGS := -std=gnu11 -O1 $(SANITIZERS) -fsanitize=fuzzer $(CPPFLAGS_ALL)
FUZZ_SOURCES := core/class_names.c $(wildcard core/config*.c) core/foreign_names.c core/safetensors.c core/die.c core/error.c core/files.c \
                core/json_lists.c core/text.c data/sets/cifar.c data/video/clip_file.c data/video/clips.c data/detection/coco.c data/sets/dataset.c data/images/image.c data/images/jpeg.c $(WEBP_SOURCE) \
                data/sets/mnist.c data/sequences/mu_law.c data/sets/record.c data/images/resample.c $(SOUND_SOURCE) $(VIDEO_SOURCE) data/video/video_names.c data/video/videos.c detection/coco_results.c detection/coco_eval.c

FUZZ_OBJECTS := $(FUZZ_SOURCES:%.c=build/fuzz/%.o)

# stb_image copies zero bytes from NULL.
build/fuzz/data/images/image.o: FUZZ_FLAGS += -fno-sanitize=nonnull-attribute

build/fuzz/fuzz_video: FUZZ_LIBRARIES := $(VIDEO_LIBRARIES) -lcmocka

# Where the last bit is somebody else's - Pillow's, pycocotools', DETR's - no product is fused into a sum.
$(patsubst %,$(BUILD)/%.o,data/images/pillow data/images/randaugment data/detection/detection_augment detection/coco_eval detection/postprocess \
    tests/test_randaugment): private FLAGS += -ffp-contract=off

fuzz: need-clang $(FUZZERS)
need-clang:
	@command -v clang >/dev/null || { echo "make fuzz needs clang with libFuzzer: sh scripts/deps.sh test installs it"; exit 1; }
build/fuzz/%.o: %.c
	@mkdir -p $(@D)
	@clang $(FUZZ_FLAGS) -MMD -c $< -o $@
$(FUZZERS): build/fuzz/%: build/fuzz/tests/%.o $(FUZZ_OBJECTS)
	@echo "FUZZ $@"
	@clang $(FUZZ_FLAGS) $^ -o $@ -linih -ljansson -ljpeg $(WEBP_LIBRARIES) $(SOUND_LIBRARIES) -lxxhash -lm -ldl $(FUZZ_LIBRARIES)

clean:
	rm -rf build

-include $(OBJECTS:.o=.d) $(COUNTED:.o=.d) $(LAUNCHER:.o=.d) $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d) $(FUZZ_OBJECTS:.o=.d) $(wildcard build/fuzz/tests/*.d)
