# The CUDA kernels on the CPU: every thread of a block is a fiber (tests/emulate/device.cuh), and stand-ins replace
# CUDA's libraries.  The kernels are sanitized; the C files are not, because they are in build/cpu-asan.
CPPFLAGS_ALL := -Itests/emulate -Itests/emulate/cuda -DVIT_CUDNN -DVIT_CUFFT $(if $(filter 1,$(MPI)),-DVIT_NCCL) $(CPPFLAGS_ALL)
override CFLAGS += -O1
# The compiler must not duplicate a call: its address identifies the barrier (-fno-thread-jumps).
CXXFLAGS_ALL := -std=c++17 -O1 $(SANITIZERS) -fopenmp -Wall -Wextra \
                -fno-thread-jumps -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror) $(CPPFLAGS_ALL)
# The longest first: one of them takes as long as ten others.
CU_SOURCES := $(shell ls -S kernels/*/*.cu)
EMULATOR := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/emulate/test_%,$(wildcard tests/emulate/*.cpp)))
EMULATOR_TESTS := $(BUILD)/tests/emulate/test_emulator $(BUILD)/tests/emulate/test_standins
UNSANITIZED := $(filter-out -g1 -fsanitize% -fno-sanitize%,$(CXXFLAGS_ALL))
$(BUILD)/tests/emulate/fibers.o $(BUILD)/tests/emulate/arithmetic.o $(BUILD)/tests/emulate/traffic.o: \
    private CXXFLAGS_ALL := $(UNSANITIZED) -O3 $(MARCH)
LINK := g++
WRAPPED := $(foreach f,_Z17kernels_workspacem kernels_reserve gemm_peak_gflops memory_peak_gbytes activations_at_once \
                       device_shares_cores,-Wl,--wrap=$f)
LINK_FLAGS := $(CXXFLAGS_ALL) $(WRAPPED) $(LDFLAGS)

report-device:
	@echo "vit.c for CUDA, $(PRECISION), emulated on the CPU"

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $<"
	@g++ $(CXXFLAGS_ALL) -x c++ -MMD -MP -c $< -o $@

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $<"
	@g++ $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@

$(PROGRAMS:%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/%.o $(BUILD)/libtrain.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES)

$(EMULATOR_TESTS): $(BUILD)/tests/emulate/%: $(BUILD)/tests/emulate/%.o $(BUILD)/libtrain.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $^ -o $@ $(LIBRARIES) -lcmocka

# == Bytes counted ===================================================================================================

# The kernels of the models whose bytes are counted, instrumented with calls of tests/emulate/traffic.cpp in place of
# the sanitizers.
COUNTED := $(patsubst %,$(BUILD)/counted/%.o,tests/emulate/emulate $(patsubst %,kernels/%.cu, \
    device/runtime landmarks/low_rank linear/gelu linear/linear linear/linear_gelu linear_attention/feature_mlp \
    linear_attention/linear_attention linear_attention/spe_conv linear_attention/spe_sine lisa/global_filter \
    lisa/lisa_fft norm/l2_normalize norm/layernorm offsets/patterns offsets/weighted_attention \
    ripple/ripple_pairs ripple/ripple_weights softmax/softmax_attention softmax/softmax_head \
    softmax/thresholded_attention tokens/images tokens/tokens training/cross_entropy training/distillation training/optimizer))
COUNTED_TEST := $(BUILD)/counted/tests/emulate/test_traffic.o
$(COUNTED) $(COUNTED_TEST): \
    private CXXFLAGS_ALL := $(UNSANITIZED) -fsanitize=thread --param tsan-instrument-func-entry-exit=0

$(BUILD)/counted/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $< (counted)"
	@g++ $(CXXFLAGS_ALL) -x c++ -MMD -MP -c $< -o $@
$(BUILD)/counted/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "C++ $< (counted)"
	@g++ $(CXXFLAGS_ALL) -MMD -MP -c $< -o $@
$(BUILD)/counted/train_vit: $(BUILD)/train_vit.o
$(BUILD)/counted/test_traffic: $(COUNTED_TEST)
$(BUILD)/counted/train_vit $(BUILD)/counted/test_traffic: $(COUNTED) $(BUILD)/libtrain.a
	@echo "LINK $@"
	@$(LINK) $(LINK_FLAGS) $(filter %.o,$^) $(BUILD)/libtrain.a -o $@ $(LIBRARIES) $(if $(findstring test,$@),-lcmocka)
counted: $(BUILD)/counted/train_vit $(BUILD)/counted/test_traffic
.PHONY: counted
