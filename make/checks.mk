# Checks that need more than this backend: a GPU, the emulator, fuzzers, linters.
.PHONY: cuda test-cuda sanitize-cuda need-nvcc need-gpu need-clang emulate fuzz tidy

# == CUDA ============================================================================================================

cuda: need-nvcc
	@$(MAKE) --no-print-directory BACKEND=cuda report
	@$(MAKE) --no-print-directory BACKEND=cuda

need-nvcc:
	@command -v nvcc >/dev/null || [ -x "$(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc" ] || \
		{ echo "there is no nvcc here: install the CUDA toolkit, or say CUDA_HOME=where/it/is"; exit 1; }
need-gpu:
	@[ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1 || \
		{ echo "make $(MAKECMDGOALS) needs an NVIDIA GPU, and there is none here"; exit 1; }

# In float32 test_model computes more than 100,000 forward passes while it shares the GPU with the other tests.
test-cuda: need-gpu need-nvcc
	@$(MAKE) --no-print-directory BACKEND=cuda PRECISION=FP32 all tests
	@$(MAKE) --no-print-directory BACKEND=cuda PRECISION=BF16 all tests
	@$(MAKE) --no-print-directory all build/cpu/tests/parity
	@BUILD=build/cuda-fp32 VIT_TEST_TIMEOUT=3600 sh tests/run.sh $(DEVICE_TESTS)
	@BUILD=build/cuda sh tests/run.sh $(DEVICE_TESTS)
	@sh tests/emulate/cuda_vs_cpu.sh

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

# Both precisions, with small odd sizes.
emulate:
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=FP32 tests
	@$(MAKE) --no-print-directory BACKEND=emulate PRECISION=BF16 tests

# == For editors and linters =========================================================================================

# The commands that make would run, as data: every compilation of `all tests benches` with its flags, for clangd and
# clang-tidy.
compile_commands.json: FORCE
	@$(MAKE) -nB --no-print-directory VARIANTS= all tests benches | sed -n 's/^ccache //; s/\\/\\\\/g; s/"/\\"/g; \
		s|^\([^ ].* -c \([^ ]*\) -o [^ ]*\.o\)$$|{"directory": "$(CURDIR)", "file": "\2", "command": "\1"}|p' | \
		sed '1s/^/[/; $$!s/$$/,/; $$s/$$/]/' > $@
	@echo "$@: $$(grep -c '"file"' $@) files"

# Both find nothing: .clang-tidy and .cppcheck list the checks that are off, and the reasons.  data/images/image.c
# contains stb's implementation, whose findings would be counted as this project's.
tidy: compile_commands.json
	@command -v clang-tidy >/dev/null && command -v cppcheck >/dev/null && \
		echo '#include <omp.h>' | clang -fopenmp -fsyntax-only -x c - 2>/dev/null || { echo "make tidy needs clang-tidy," \
		"cppcheck and clang's omp.h: apt-get install clang clang-tidy cppcheck libomp-dev"; exit 1; }
	@printf '%s\n' $(filter-out data/images/image.c,$(SOURCES)) $(PROGRAMS:%=%.c) $(wildcard kernels/launcher/*.c) | \
		xargs -P $$(nproc) -n 1 clang-tidy -p . --quiet
	@cppcheck --project=compile_commands.json --enable=warning,performance,portability --suppressions-list=.cppcheck \
		--error-exitcode=1 --quiet -j $$(nproc) --template='{file}:{line}: {severity}: {message} [{id}]'

# == Fuzzing: clang's libFuzzer, the parsers, and libvit on one thread ===============================================

FUZZ_FLAGS := -std=gnu11 -O1 -Wno-psabi $(SANITIZERS) -fsanitize=fuzzer -Iexamples/browser/standins $(CPPFLAGS_ALL) -UVIT_MPI
FUZZ_TESTS := $(filter-out $(if $(filter 1,$(VIDEO)),,%/fuzz_video.c),$(wildcard tests/fuzz/*.c))
FUZZERS := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(FUZZ_TESTS))
# The code that reads files; the linker takes from the archive what each fuzzer needs.
FUZZ_SOURCES := $(sort $(filter core/% data/% detection/coco_% report/%,$(SOURCES)) $(MODEL_SOURCES))
FUZZ_LIBRARIES := -linih -ljansson -ljpeg $(WEBP_LIBRARIES) $(SOUND_LIBRARIES) -lxxhash -lm -ldl
build/fuzz/fuzz_library: FUZZ_LIBRARIES += $(WRAPPED) -lpthread
build/fuzz/fuzz_library: $(BUILD)/commit.o # a page of a run names it
build/fuzz/fuzz_video: FUZZ_LIBRARIES += $(VIDEO_LIBRARIES) -lcmocka
# stb_image copies zero bytes from NULL.
build/fuzz/data/images/image.o: private FUZZ_FLAGS += -fno-sanitize=nonnull-attribute

fuzz: need-clang $(FUZZERS)
need-clang:
	@command -v clang >/dev/null || { echo "make fuzz needs clang with libFuzzer: sh scripts/deps.sh test installs it"; exit 1; }
build/fuzz/flags: FORCE
	$(call stamp,$(FUZZ_FLAGS) $(LDFLAGS))
build/fuzz/%.o: %.c build/fuzz/flags
	@mkdir -p $(@D)
	@clang $(FUZZ_FLAGS) -MMD -MP -c $< -o $@
build/fuzz/libtrain.a: $(FUZZ_SOURCES:%.c=build/fuzz/%.o)
	@rm -f $@
	@ar rcs $@ $^
$(FUZZERS): build/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/libtrain.a
	@echo "FUZZ $@"
	@clang $(FUZZ_FLAGS) $(LDFLAGS) $^ -o $@ $(FUZZ_LIBRARIES)
